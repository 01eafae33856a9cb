"""What a study tells while it works."""

import io

from rich.console import Console

from synthesizer.study.live_table import Board, LiveBoard, Standing


def standings():
    return [Standing("dot", 2, 60.0), Standing("random", 2, 60.0), Standing("none", 2, 60.0)]


def play(board):
    board.start(0, "a", "seed 1")
    board.show(0, "a", {"step": 50, "steps": 100, "loss": 2.5, "rate": 9000.0, "left": 30.0})
    board.measure(0, "a", "bits_per_byte", 3.25)
    board.start(1, "b", "seed 1")
    board.fail(1, "b", "the loss is nan")
    board.finish(0, "a", "bits_per_byte", 3.125)


def test_plain_lines_say_who_what_and_how_long(capsys):
    play(Board(standings(), 2, 100))
    assert capsys.readouterr().out.splitlines() == [
        "[0/6] dot seed 1: training",
        "[0/6] dot seed 1: step 50/100  loss 2.5000  9,000 tokens/s  0:30 left, 2:45 in all",
        "[0/6] random seed 1: training",
        "[1/6] random seed 1 failed: the loss is nan",
        "[2/6] dot seed 1: test bits_per_byte 3.1250",
    ]


def test_the_table_shows_every_row_and_the_whole():
    board = LiveBoard(standings(), 2, 100)
    try:
        play(board)
        board.start(0, "c", "seed 2")
        board.show(0, "c", {"step": 10, "steps": 100, "loss": 2.0, "rate": 800.0, "left": 90.0})
        text = drawn(board, 80)
    finally:
        board.close()
    for words in ("training", "10/100", "2.0000", "3.1250", "800", "1:30", "failed", "1/2"):
        assert words in text
    assert "waiting" in text
    assert "[2/6] runs" in text
    assert "metric: bits_per_byte on validation, once done on test" in text


def drawn(board, width):
    console = Console(file=io.StringIO(), width=width)
    board._console = console
    console.print(board._table())
    return console.file.getvalue()


def test_nothing_is_cut_off_in_eighty_columns_and_nothing_moves():
    """Long names are folded; a line that reaches the edge would break when Ctrl-C is echoed."""
    long = "dot, as large as factorized_random+dense+dot"
    board = LiveBoard([Standing(long, 10, 60.0), Standing("none", 10, 36_000.0)], 1, 99_999)
    try:
        board.start(0, "a", "seed 1")
        before = drawn(board, 80)
        values = {"step": 99_950, "steps": 99_999, "loss": 12.3456, "rate": 123_456.0}
        board.show(0, "a", {**values, "left": 35_999.0})
        board.measure(0, "a", "perplexity", 1234.5678)
        after = drawn(board, 80)
    finally:
        board.close()
    for words in ("99950/99999", "12.3456", "1234.56", "123,456", "0/10", "10 h"):
        assert words in after
    assert "\N{HORIZONTAL ELLIPSIS}" not in after
    assert max(len(line.rstrip()) for line in after.splitlines()) <= 77
    assert before.splitlines()[0] == after.splitlines()[0]
