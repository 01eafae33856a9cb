"""Pack a folder of run records as one .zip, and write the report beside it.

    python tools/pack.py results/shift        results/shift/ -> results/shift.zip, results/shift.md
    python tools/pack.py results/*.zip        write every report again

Weights, checkpoints, pages, logs and hashes stay out: they can be made again, and a .zip checks its
members itself. The same records give the same bytes.
"""

import argparse
import shutil
import zipfile
from pathlib import Path

from synthesizer_attention.report.write import summarize_all, text_of
from synthesizer_attention.run.records import PACKED, opened

RECORDS = {
    "study.json", "recipe.toml", "result.json", "metrics.jsonl", "timing.jsonl", "samples.txt",
    "statistics.npz", "attention.npz",
}  # fmt: skip
LEFT_OUT = {
    "manifest.json", "report.html", "report.md", "table.csv", ".lock", "checkpoints", "model",
}  # fmt: skip
EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(folder: Path) -> Path:
    """Put the records of a folder into a .zip beside it, and remove the folder."""
    inside = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    kept = [path for path in inside if path.name in RECORDS]
    foreign = [
        p for p in inside if p not in kept and not LEFT_OUT & {*p.parts} and p.suffix != ".log"
    ]
    if foreign:
        raise SystemExit(f"{folder / foreign[0]} is no record; move it out of {folder}")
    packed = folder.with_name(folder.name + PACKED)
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for path in kept:
            member = zipfile.ZipInfo(path.as_posix(), EPOCH)
            stored = path.suffix == ".npz"  # deflated already
            member.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
            file.writestr(member, (folder / path).read_bytes())
    shutil.rmtree(folder)
    return packed


def write_report(packed: Path) -> None:
    """Write what a .zip says beside it, as Markdown."""
    text = text_of(summarize_all([opened(packed)]))
    packed.with_suffix(".md").write_text(text, encoding="utf-8")


def main() -> None:
    """Pack every folder that is named; write the report of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", nargs="+", type=Path)
    for path in parser.parse_args().path:
        packed = pack(path) if path.is_dir() else path
        write_report(packed)
        print(packed)


if __name__ == "__main__":
    main()
