"""An audit that was stopped goes on behind what it has measured, and ends with the same record."""

import json
import signal
import time

import pytest

from synthesizer_attention.audit.cost import Auditor, Point
from synthesizer_attention.audit.record import Measured
from synthesizer_attention.errors import UserError
from test_audit import finished, home, measured  # noqa: F401


def counted(monkeypatch):
    """Count how often the model reads examples with heads replaced, or with none."""
    calls = []
    whole = Auditor.outcome

    def outcome(self, heads, examples):
        calls.append(len(heads))
        return whole(self, heads, examples)

    monkeypatch.setattr(Auditor, "outcome", outcome)
    return calls


def stopped(home, out, metric, at, **more):  # noqa: F811
    """Audit until something is said."""

    def say(text):
        if text.startswith(at):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(home, metric, out, say, **more)


def without_times(record):
    return {
        name: value
        for name, value in record.items()
        if name not in ("speed", "command", "checksum")
    }


@pytest.mark.parametrize(
    ("metric", "at"), [("spearman", "3 of 6 heads ranked"), ("loss", "2 of 6 heads replaced")]
)
def test_the_record_is_that_of_an_audit_in_one_piece(home, tmp_path, monkeypatch, metric, at):  # noqa: F811
    calls = counted(monkeypatch)
    whole = measured(home, metric, tmp_path / "whole")
    in_one_piece = len(calls)
    stopped(home, tmp_path / "stopped", metric, at)
    before = len(calls) - in_one_piece
    assert not (tmp_path / "stopped" / "audit.json").exists()
    said = []
    resumed = measured(home, metric, tmp_path / "stopped", said.append)
    number = {"3": 6, "2": 6 + 3 + 2}[at[0]]  # heads alone, behind three, and 0 and 1 replaced
    assert f"going on behind {number} measurements" in said
    assert without_times(resumed) == without_times(whole)
    assert (tmp_path / "stopped" / "tables.safetensors").read_bytes() == (
        tmp_path / "whole" / "tables.safetensors"
    ).read_bytes()
    assert not (tmp_path / "stopped" / "measured.jsonl").exists()
    again = len(calls) - in_one_piece - before
    assert before + again <= in_one_piece + 3  # the originals, and the point that was not finished


def test_a_line_that_was_cut_off_is_measured_again(home, tmp_path):  # noqa: F811
    _, whole = finished(home, "agreement")
    stopped(home, tmp_path / "out", "agreement", "2 of 6 heads replaced")
    path = tmp_path / "out" / "measured.jsonl"
    path.write_text(path.read_text()[:-9])
    stopped(home, tmp_path / "out", "agreement", "2 of 6 heads replaced")
    assert all(json.loads(line) for line in path.read_text().splitlines())
    said = []
    measured(home, "agreement", tmp_path / "out", said.append)
    assert "going on behind 11 measurements" in said
    resumed = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert without_times(resumed) == without_times(whole)


def test_another_audit_is_not_gone_on_with(home, tmp_path):  # noqa: F811
    stopped(home, tmp_path, "agreement", "3 of 6 heads ranked")
    path = tmp_path / "measured.jsonl"
    with pytest.raises(UserError, match="of an unfinished audit whose seed was 0, and now it is 1"):
        measured(home, "agreement", tmp_path, seed=1)
    texts = home / "texts.txt"
    written = texts.read_text()
    try:
        texts.write_text(written.replace("w3", "w4"))
        with pytest.raises(UserError, match="whose checksum of texts was"):
            measured(home, "agreement", tmp_path)
    finally:
        texts.write_text(written)
    config = home / "bare" / "tokenizer_config.json"
    written = config.read_text()
    try:
        config.write_text(written + " ")
        with pytest.raises(UserError, match="whose sha256 of config and tokenizer was"):
            measured(home, "agreement", tmp_path)
    finally:
        config.write_text(written)
    path.write_text("no record\n")
    with pytest.raises(UserError, match=r"measured.jsonl is damaged .*; delete it to measure from"):
        measured(home, "agreement", tmp_path)


def test_a_measurement_whose_digit_was_flipped_is_named(home, tmp_path):  # noqa: F811
    stopped(home, tmp_path, "agreement", "2 of 6 heads replaced")
    path = tmp_path / "measured.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    digit = lines[3].index("0.") + 2
    lines[3] = lines[3][:digit] + str((int(lines[3][digit]) + 1) % 10) + lines[3][digit + 1 :]
    path.write_text("".join(lines))
    with pytest.raises(UserError, match=r"jsonl is damaged \(.*the checksum of .* is another"):
        measured(home, "agreement", tmp_path)


POINT = {"replaced": 1, "value": 2.0, "cost": float("nan"), "low": 0.1, "high": 1.5}
JUNK = {
    "no UTF-8": b"\xff\n",
    "a deep list": b"[" * 100_000 + b"\n",
    "a number": b"5\n",
    "a line of text": b'{"facts": {"seed": "0"}}\n"x"\n',
    "a name that is a list": b'{"facts": {"seed": "0"}}\n{"name": [], "found": {}}\n',
    "a list for a point": b'{"facts": {"seed": "0"}}\n{"name": "one", "found": [1]}\n',
    "a point without its value": b'{"facts": {"seed": "0"}}\n{"name": "one", "found": {}}\n',
    "a point of text": json.dumps({"facts": {"seed": "0"}}).encode()
    + b"\n"
    + json.dumps({"name": "one", "found": POINT | {"value": "x"}}).encode()
    + b"\n",
}


@pytest.mark.parametrize("junk", JUNK)
def test_junk_among_measurements_is_one_line(tmp_path, junk):
    (tmp_path / "measured.jsonl").write_bytes(JUNK[junk])
    with pytest.raises(UserError, match=r"measured.jsonl is damaged \(.*\); delete it") as error:
        Measured(tmp_path, {"seed": "0"})("one", lambda: Point(**POINT), Point)
    assert "\n" not in str(error.value)


def test_a_measurement_is_read_as_it_was_made(tmp_path):
    made = Measured(tmp_path, {"seed": "0"})("one", lambda: Point(**POINT), Point)
    again = Measured(tmp_path, {"seed": "0"})("one", pytest.fail, Point)
    assert repr(again) == repr(made)


@pytest.mark.slow
def test_a_killed_process_leaves_what_it_measured(home, tmp_path, forks):  # noqa: F811
    command = [
        "audit", home / "masked", home / "texts.txt", "--max-len", "12", "--rank-examples", "4",
        "--fit-examples", "20", "--rankings", "2", "--steps", "3", "--out", tmp_path / "out",
    ]  # fmt: skip
    path = tmp_path / "out" / "measured.jsonl"
    process = forks.start(*command, cwd=tmp_path)
    until = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until:
        if path.exists() and len(path.read_text().splitlines()) > 2:
            process.kill()
            break
        time.sleep(0.001)
    code, _, _ = process.wait()
    assert code == -signal.SIGKILL
    known = len([line for line in path.read_text().split("\n")[1:-1] if line])
    code, _, said = forks.run(*command, cwd=tmp_path)
    assert code == 0
    assert f"going on behind {known} measurements" in said
    assert not path.exists()
    assert (tmp_path / "out" / "audit.json").exists()
