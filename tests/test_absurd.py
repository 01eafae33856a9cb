"""Absurd names and numbers end in one line, and at once: no traceback, no list of a billion."""

import contextlib
import signal

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from synthesizer_attention import SyntheticAttention
from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe import dump, load_recipe, parse_recipe
from synthesizer_attention.spec import expand_layers, modules_of, normalize_spec, parse_positions
from synthesizer_attention.study.rows import parse_row, parse_vary
from synthesizer_attention.study.workers import parse_jobs
from tiny import language_model

DIGITS = "9" * 4301  # more than Python's int() reads
NUMBERS = ("1000000000", "4611686018427387904", "9" * 23, DIGITS)
SPECS = [text.replace("N", number) for number in NUMBERS for text in (
    "random*N", "random*N,dot", "random@N|dot@1", "factorized_random:k=N", "linformer:k=N",
    "dynamicconv:kernel=N", "factorized_dense:a=N:b=N", "N", "dot@N", "rotary:base=N",
)]  # fmt: skip
SPECS += ["dot" + "@1" * 5000, "+" * 5000, "|" * 5000, "[" * 5000, "random*²", "dot\0", "\ud800"]
SPECS += ["rotary:base=1e400", "rotary:share=nan", "rotary:base=inf"]
VALUES = ["[" * 100_000, "[" * 5000 + "]" * 5000, "{a=" * 5000, *NUMBERS, f"-{DIGITS}"]
VALUES += ["0x" + "f" * 5000, f"1e{DIGITS}", "nan", "-inf", "\0", "\ud800", '"""', "x" * 100_000]
KEYS = [
    "train.lr",
    "train.steps",
    "seed",
    "data.columns",
    "model.positions",
    "imports",
    "text.kind",
]
WORDS = st.lists(
    st.sampled_from(
        ["random", "dot", "R", "factorized_random", "none", "linformer", ":k=", ":", "=", "*", "@",
         "|", "+", ",", "1", "0", "-1", "1e9", "\0", "²", " ", "rotary", ":base=", *NUMBERS]
    ), max_size=12,
).map("".join)  # fmt: skip


@contextlib.contextmanager
def at_once(seconds=30):
    """Fail a body that takes long, as a billion of anything does."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it does not end"))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def examples(function):
    """Try every absurd spec in a test of hypothesis, beside what it makes up."""
    for text in SPECS:
        function = example(text=text)(function)
    return function


def build(spec):
    """The layer, without memory."""
    with torch.device("meta"):
        SyntheticAttention(8, 2, 4, spec)


READERS = (
    normalize_spec, modules_of, parse_positions, parse_row, parse_vary, parse_jobs,
    lambda text: expand_layers(text, 2),
    lambda text: parse_vary(f"seed={text},{text}"),
    build,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(text=WORDS)
@examples
def test_a_name_is_read_or_refused_at_once(text):
    with at_once():
        for read in READERS:
            with contextlib.suppress(UserError):
                read(text)


@pytest.mark.parametrize("key", KEYS)
def test_a_value_is_read_or_refused_at_once(key):
    with at_once():
        for value in VALUES:
            with contextlib.suppress(UserError):
                load_recipe("shift", overrides=[f"{key}={value}"])
            with contextlib.suppress(UserError):
                parse_recipe(f"{key} = {value}\n")


@pytest.mark.parametrize("override", ["a." * 5000 + "b=1", "data.columns" + ".x" * 5000 + "=1"])
def test_a_key_that_is_nested_too_deeply_is_refused(override):
    with pytest.raises(UserError, match=r"shift.toml is nested too deeply; a recipe is sections"):
        load_recipe("shift", overrides=[override])


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("random*900000000", "names 900000000 layers but the model has 2; name 2 layers"),
        (f"random*{DIGITS}", "write a whole number of layers, as in random*3,dot*3"),
        ("dot@1@1", "does not say how many heads it is for; write it as in random@8|dot@4"),
    ],
)
def test_a_count_is_compared_before_anything_is_listed(spec, text):
    with at_once(seconds=3), pytest.raises(UserError) as error:
        expand_layers(spec, 2)
    assert text in str(error.value)


NUMBERED = [
    "generate run --seed N",
    "generate run --batch-size N",
    "generate run --max-new-tokens N",
    "compare tiny.toml --plan --seeds N",
    "compare tiny.toml --plan --jobs N",
    "compare tiny.toml --plan --tune N",
    "compare tiny.toml --plan --ladder N",
    "compare tiny.toml --plan --synthesis random*N",
    "compare tiny.toml --plan --synthesis dot --positions rotary:base=N:share=N",
    "train tiny.toml --check --synthesis factorized_random:k=N",
    "train tiny.toml --check --set seed=N",
    "train tiny.toml --check --set model.max_len=N",
    "train tiny.toml --check --set train.lr=[[N",
    "bench --explain --length N",
    "bench --explain --tokens N",
    "bench --explain --d-model N",
    "bench --explain --num-heads N",
    "bench --explain --threads N",
    "bench --explain --rounds N",
    "bench --explain --vocab-size N",
    "bench --explain --device N",
    "bench --explain --variant factorized_random:k=N",
    "audit run text.txt --max-len N",
    "audit run text.txt --examples N",
    "audit run text.txt --rankings N",
    "audit run text.txt --length N",
    "audit run text.txt --seed N",
    "convert run --out new --heads N",
    "convert run --out new --tune N",
]


@pytest.mark.parametrize("command", NUMBERED)
def test_an_absurd_number_on_the_command_line_is_one_error(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(dump(language_model(tmp_path)))
    for number in NUMBERS[2:]:
        with at_once():
            assert main(command.replace("N", number).split()) == 2
        assert "error" in capsys.readouterr().err.casefold()


def test_memory_that_is_not_there_is_one_line(capsys):
    assert main(["bench", "--explain", "--variant", "factorized_random:k=2147483647"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("synthesizer: error: this machine has too little memory (")
    assert error.endswith("; ask for a smaller model, batch or length\n")
    assert error.count("\n") == 1
