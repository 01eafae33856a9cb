"""What a study shows while it runs."""

import io
import json

from rich.console import Console

from synthesizer_attention.run.recipe import load_recipe
from synthesizer_attention.run.run import Run
from synthesizer_attention.study.live import LiveTable, RowStatus, RunLog, StatusLines


def rows():
    return [RowStatus("dot", 2, 60.0), RowStatus("random", 2, 60.0), RowStatus("none", 2, 60.0)]


def show(status, row, name, **values):
    status.receive(row, name, {"event": "show", **values})


def play(status):
    status.receive(0, "seed 1", {"event": "start"})
    show(status, 0, "seed 1", step=50, steps=100, loss=2.5, rate=9000.0, left=30.0)
    measured = {"event": "measure", "metric": "bits_per_byte", "value": 3.25}
    status.receive(0, "seed 1", measured)
    status.receive(1, "seed 1", {"event": "start"})
    status.receive(1, "seed 1", {"event": "retry", "error": "the worker was stopped by SIGKILL"})
    status.receive(1, "seed 1", {"event": "start"})
    status.receive(1, "seed 1", {"event": "failed", "error": "the loss is nan"})
    status.receive(0, "seed 1", {**measured, "event": "done", "value": 3.125})


def test_plain_lines_say_who_what_and_how_long(capsys):
    play(StatusLines(rows(), 2, 100))
    assert capsys.readouterr().out.splitlines() == [
        "[0/6] dot seed 1: training",
        "[0/6] dot seed 1: step 50/100  loss 2.5000  9,000 tokens/s  0:30 left, 2:45 in all",
        "[0/6] random seed 1: training",
        "[0/6] random seed 1 failed: the worker was stopped by SIGKILL; trying again",
        "[0/6] random seed 1: training",
        "[1/6] random seed 1 failed: the loss is nan",
        "[2/6] dot seed 1: test bits_per_byte 3.1250",
    ]


def test_the_time_left_is_of_what_runs_and_none_is_made_up(capsys):
    values = {"step": 50, "steps": 100, "loss": 2.5, "rate": 9000.0, "left": 30.0}
    status = StatusLines([RowStatus("tokenizer word", 1, 60.0)], 1, 100, "validation")
    status.receive(0, "trial 1", {"event": "start"})
    show(status, 0, "trial 1", **values)
    assert capsys.readouterr().out.endswith("0:30 left, 0:30 for these trials\n")
    status = StatusLines([RowStatus("dot", 1, 0.0), RowStatus("random", 1, 0.0)], 1, 100)
    show(status, 0, "seed 1", **values)  # what a lost worker still logged
    assert capsys.readouterr().out == ""
    status.receive(0, "seed 1", {"event": "start"})
    assert [row.seconds_left(0.0, 0.0) for row in status.rows] == [None, None]
    show(status, 0, "seed 1", **values)
    status.rows[0].expected = 60.0  # what a finished run took
    show(status, 0, "seed 1", **values)
    _, before, after = capsys.readouterr().out.splitlines()
    assert before.endswith("0:30 left, unknown time in all")
    assert after.endswith("0:30 left, 1:30 in all")


def test_the_table_shows_every_row_and_the_whole():
    status = LiveTable(rows(), 2, 100)
    try:
        play(status)
        status.receive(0, "seed 2", {"event": "start"})
        show(status, 0, "seed 2", step=10, steps=100, loss=2.0, rate=800.0, left=90.0)
        text = drawn(status, 80)
    finally:
        status.close()
    for words in ("training", "10/100", "2.0000", "3.1250", "800", "1:30", "failed", "1/2"):
        assert words in text
    assert "waiting" in text
    assert "[2/6] runs" in text
    assert "metric: bits_per_byte on validation, once done on test" in text


def drawn(status, width):
    console = Console(file=io.StringIO(), width=width)
    status._console = console
    console.print(status._table())
    return console.file.getvalue()


def test_nothing_is_cut_off_in_eighty_columns_and_nothing_moves():
    """Long names are folded; a line that reaches the edge would break when Ctrl-C is echoed."""
    long = "dot, as large as factorized_random+dense+dot"
    status = LiveTable([RowStatus(long, 10, 60.0), RowStatus("none", 10, 36_000.0)], 1, 99_999)
    try:
        status.receive(0, "seed 1", {"event": "start"})
        before = drawn(status, 80)
        values = {"step": 99_950, "steps": 99_999, "loss": 12.3456, "rate": 123_456.0}
        show(status, 0, "seed 1", **values, left=35_999.0)
        measured = {"event": "measure", "metric": "perplexity", "value": 1234.5678}
        status.receive(0, "seed 1", measured)
        after = drawn(status, 80)
    finally:
        status.close()
    for words in ("99950/99999", "12.3456", "1234.56", "123,456", "0/10", "10 h"):
        assert words in after
    assert "\N{HORIZONTAL ELLIPSIS}" not in after
    assert max(len(line.rstrip()) for line in after.splitlines()) <= 77
    assert before.splitlines()[0] == after.splitlines()[0]


def test_progress_is_read_from_the_directory_of_a_run(tmp_path):
    """Only what is new: not what a run logged before it was resumed, nor half a line."""
    run, recipe = Run(tmp_path), load_recipe("shift", overrides=["train.steps=40"])

    def step(number, loss):
        run.log(number, {"loss": loss})
        run.log_time(number, {"seconds": 2.0, "tokens": 300})

    step(10, 9.0)
    log = RunLog(tmp_path, recipe, "accuracy")
    assert log.read() == []
    run.rewind(5)
    assert log.read() == []
    step(20, 2.0)
    run.log(20, {"validation": {"accuracy": 61.0, "loss": 1.9}})
    run.log_time(20, {"memory_bytes": 1})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 30, "loss": 1.0})[:9])
    show, measure = log.read()
    assert (show["step"], show["steps"], show["loss"], show["rate"]) == (20, 40, 2.0, 150.0)
    assert measure == {"event": "measure", "step": 20, "metric": "accuracy", "value": 61.0}
    assert log.read() == []
