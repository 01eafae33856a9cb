"""What a study tells while it works."""

import io

from rich.console import Console

from synthesizer.board import Board, LiveBoard, Standing


def standings():
    return [Standing("dot", 2, 60.0), Standing("random", 2, 60.0), Standing("none", 2, 60.0)]


def play(board):
    board.start(0, "a", 1)
    board.show(0, "a", {"step": 50, "steps": 100, "loss": 2.5, "rate": 9000.0, "left": 30.0})
    board.measure(0, "a", 3.25)
    board.start(1, "b", 1)
    board.fail(1, "b", 1, "the loss is nan")
    board.finish(0, "a", 1, "bits_per_byte", 3.125)


def test_plain_lines_say_who_what_and_how_long(capsys):
    play(Board(standings(), 2))
    assert capsys.readouterr().out.splitlines() == [
        "[0/6] dot seed 1: training",
        "[0/6] dot seed 1: step 50/100  loss 2.5000  9,000 tokens/s  0:30 left, 2:45 in all",
        "[0/6] random seed 1: training",
        "[1/6] random seed 1 failed: the loss is nan",
        "[2/6] dot seed 1: test bits_per_byte 3.1250",
    ]


def test_the_table_shows_every_row_and_the_whole():
    board = LiveBoard(standings(), 2)
    try:
        play(board)
        board.start(0, "c", 2)
        board.show(0, "c", {"step": 10, "steps": 100, "loss": 2.0, "rate": 800.0, "left": 90.0})
        console = Console(file=io.StringIO(), width=100)
        console.print(board._table())
    finally:
        board.close()
    text = console.file.getvalue()
    for words in ("training seed 2", "10/100", "2.0000", "3.1250", "800", "1:30", "failed", "1/2"):
        assert words in text
    assert "waiting" in text
    assert "[2/6] runs" in text
