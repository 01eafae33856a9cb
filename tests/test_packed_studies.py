"""A study packed as one .zip is read, reported and gone on with as the folder it was."""

import runpy
import shutil
from pathlib import Path

import pytest

from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError
from synthesizer_attention.report.write import write_report
from synthesizer_attention.run.records import opened, unpack
from test_report import make_study

pack = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "pack.py"))["pack"]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study whose report is written."""
    home = tmp_path_factory.mktemp("packed") / "shift"
    make_study(home)
    write_report([home])
    return home


@pytest.fixture
def packed(study, tmp_path):
    return pack(Path(shutil.copytree(study, tmp_path / "shift")))


def test_a_packed_study_gives_the_same_report_beside_it(study, packed, capsys):
    assert main(["report", str(packed)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(packed.with_suffix(".html"))
    assert packed.with_suffix(".md").read_text() == (study / "report.md").read_text()
    assert packed.with_suffix(".csv").read_text() == (study / "table.csv").read_text()
    assert main(["report", str(packed.parent), "--out", str(packed.parent / "all")]) == 0
    assert (packed.parent / "all" / "report.md").read_text() == (study / "report.md").read_text()


def test_the_same_records_give_the_same_bytes(study, packed, tmp_path):
    again = pack(Path(shutil.copytree(study, tmp_path / "again" / "shift")))
    assert again.read_bytes() == packed.read_bytes()


def test_a_study_is_unpacked_where_it_goes_on_and_never_over_a_folder(packed):
    folder = packed.with_suffix("")
    before = {path.relative_to(opened(packed)) for path in opened(packed).rglob("*")}
    assert unpack(folder)
    assert {path.relative_to(folder) for path in folder.rglob("*")} == before
    assert not unpack(folder)
    assert not unpack(folder.with_name("other"))
    assert {path.name for path in folder.parent.iterdir()} == {"shift", "shift.zip"}


def test_a_foreign_file_is_not_packed_away(study, tmp_path):
    home = Path(shutil.copytree(study, tmp_path / "shift"))
    (home / "data.csv").write_text("a,b")
    with pytest.raises(SystemExit, match=r"data.csv is no record; move it out"):
        pack(home)
    assert (home / "study.json").exists()


@pytest.mark.parametrize("damage", ["emptied", "cut", "flipped"])
def test_a_damaged_archive_is_refused_in_a_line(packed, damage, capsys):
    content = bytearray(packed.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    packed.write_bytes({"emptied": b"", "cut": content[:-30]}.get(damage, bytes(content)))
    with pytest.raises(UserError, match=r"shift.zip is damaged \(.*; restore it from a copy"):
        opened(packed)
    with pytest.raises(UserError, match=r"is damaged"):
        unpack(packed.with_suffix(""))
    assert {path.name for path in packed.parent.iterdir()} == {"shift.zip"}
    assert main(["report", str(packed)]) == 2
