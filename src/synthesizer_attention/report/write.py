"""Run directories and paper.toml become report.html, report.md and table.csv (no torch)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from synthesizer_attention.report.blocks import Section, Text
from synthesizer_attention.report.load import read_studies
from synthesizer_attention.report.page import page
from synthesizer_attention.report.sections import explanation, lead, sections, text_of
from synthesizer_attention.report.summary import Summary, summarize
from synthesizer_attention.report.tables import csv_text
from synthesizer_attention.run.packed import SUFFIX
from synthesizer_attention.run.run import make_folder, remove_leftovers, write_text

MOST_DRAWN = 6  # studies with plots in one page
NAMES = ("report.html", "report.md", "table.csv")


def write_report(dirs: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Report on every run below dirs; the files go to out, by default to the first of dirs."""
    return write(summarize_all(dirs), Path(out if out is not None else dirs[0]))


def summarize_all(dirs: Sequence[str | Path], *, verify: bool = True) -> list[Summary]:
    """The numbers and the answer of every study below dirs."""
    studies = read_studies([Path(path) for path in dirs], verify=verify)
    return [summarize(study) for study in studies]


def write(summaries: Sequence[Summary], home: Path) -> Path:
    """Put the three files into a directory, or beside a .zip and named as it; return the page."""
    texts = (_html(summaries), text_of(summaries), csv_text(summaries))
    names: Sequence[str] = NAMES
    if home.suffix == SUFFIX and not home.is_dir():
        names = [f"{home.stem}{Path(name).suffix}" for name in NAMES]
        home = home.parent
    write_files(home, dict(zip(names, texts, strict=True)))
    return home / names[0]


def write_files(home: Path, texts: Mapping[str, str]) -> None:
    """Write files of text into a directory, each atomically; make it where it is missing."""
    make_folder(home)
    remove_leftovers(home)
    for name, text in texts.items():
        write_text(home / name, text)


def _html(summaries: Sequence[Summary]) -> str:
    if len(summaries) == 1:
        (only,) = summaries
        return page(only.question, [*sections(only), explanation()], lead(only))
    parts = [
        Section(f"{summary.study.name}: {section.heading}", section.blocks)
        for index, summary in enumerate(summaries)
        for section in _sections(summary, plots=index < MOST_DRAWN)
    ]
    note = (
        f"Plots are drawn for the first {MOST_DRAWN} of {len(summaries)} studies; "
        "report a directory alone for its plots."
    )
    first = [Text(note, "note")] if len(summaries) > MOST_DRAWN else []
    return page("Which tasks need dot-product attention?", [*parts, explanation()], first)


def _sections(summary: Summary, *, plots: bool) -> list[Section]:
    return [Section("the answer", lead(summary, plots=plots)), *sections(summary, plots=plots)]
