import io
import subprocess
import sys

import pytest
import typer

import synthesizer_attention
from synthesizer_attention.cli import app, main
from synthesizer_attention.run.recipe import dump
from tiny import environment, language_model

MOSTLY_TORCH = ("torch", "transformers", "accelerate", "datasets")


def started(*arguments):
    """Run the command line in a process of its own and list the heavy modules it imported."""
    script = (
        "import sys; from synthesizer_attention.cli import main; code = main(sys.argv[1:]); "
        f"print([name for name in {MOSTLY_TORCH!r} if name in sys.modules]); sys.exit(code)"
    )
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment())


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["recipes"], ["train", "--help"]])
def test_what_needs_no_torch_imports_none(arguments):
    done = started(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("[]")


def test_no_words_at_all_print_the_help(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert main([]) == 2
    bare = capsys.readouterr()
    assert (bare.out.split(), bare.err) == (shown.split(), "")
    assert "compare" in shown


def test_a_shell_completes_verbs(monkeypatch, capsys):
    for name, value in {"_SYNTHESIZER_COMPLETE": "complete_bash", "COMP_CWORD": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COMP_WORDS", "synthesizer re")
    assert main([]) == 0
    assert capsys.readouterr().out.split() == ["recipes", "report"]


@pytest.mark.parametrize("verb", [c.name or c.callback.__name__ for c in app.registered_commands])
def test_every_option_is_told_in_a_sentence_and_without_its_largest_number(verb, capsys):
    assert main([verb, "--help"]) == 0
    told = capsys.readouterr().out
    assert "2147483647" not in told
    assert "<=" not in told
    for option in typer.main.get_command(app).commands[verb].params:
        assert option.help.endswith((".", ")")), option.name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "no-such-recipe"], "synthesizer: error: no recipe 'no-such-recipe'"),
        (["train", "shift", "--no-such-option"], "--no-such-option"),
        (["bench", "--tokens", "0"], "0 is not between 1 and 2147483647"),
        (["bench", "--length", "9" * 5000], "Invalid value for '--length'"),
        (["compare", "--margin", "nan"], "nan is not between 0 and"),
        (["train", "DATA"], "for a file of data: synthesizer compare DATA, or --set data.train"),
        (["evaluate", "."], "holds no recipe.toml, so it is not a run"),
        (["evaluate", ".", "--split", "tset"], "--split is 'tset'; choose from train"),
        (["generate", ".", "--checkpoint", "bst"], "--checkpoint is 'bst'; choose from best"),
    ],
)
def test_a_users_mistake_is_told_with_code_two(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reviews.csv").write_text("text,label\n")
    words = [word.replace("DATA", "reviews.csv") for word in words]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message.replace("DATA", "reviews.csv") in error
    assert error.count("\n") == 1 or error.startswith("Usage: ")


def test_version_list_and_recipes_print_the_packages_own(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"synthesizer {synthesizer_attention.__version__}\n"
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    for words in ("B[i,j] = (x[i] Wq)", "factorized_dense", "none", "R = random"):
        assert words in printed
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (shift,) = [line for line in lines if line.startswith("│ shift ")]
    assert "probe" in shift
    assert "500 steps" in shift


def test_a_check_tells_everything_and_trains_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipe.toml"
    path.write_text(dump(language_model(tmp_path)))
    assert main(["train", str(path), "--check"]) == 0
    told = capsys.readouterr().out
    for word in ('synthesis = "random+dot"', "attention logits:", "FLOPs per token", "time: about"):
        assert word in told
    assert "cache bytes per token: 64" in told
    assert "examples" in told
    assert not (tmp_path / "runs").exists()


def test_data_are_encoded_by_themselves(tmp_path, monkeypatch, capsys):
    path, home = tmp_path / "own.toml", tmp_path / "cache"
    path.write_text(dump(language_model(tmp_path)))
    monkeypatch.setenv("SYNTHESIZER_CACHE", str(home))
    monkeypatch.chdir(tmp_path)
    words = ["train", str(path), "--prepare"]
    assert main(words) == 0
    assert "tokens: {'train':" in capsys.readouterr().out
    (entry,) = home.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr("synthesizer_attention.tasks.stream.join_documents", None)
        assert main(words) == 0, "from the cache"
    assert [*home.iterdir()] == [entry]
    assert not (tmp_path / "runs").exists()
    home.chmod(0o777)
    assert main(words) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1
    assert error[0].endswith("; set SYNTHESIZER_CACHE to a directory of your own")


def test_a_check_tells_the_published_count_of_the_same_row(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("SYNTHESIZER_DATA", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nobody
    small = ["--check"]  # the printed count is the paper's
    for change in ("num_layers=1", "d_model=64", "d_ff=64"):
        small += ["--set", f"model.{change}"]
    assert main(["train", "mt-wmt14-ende", "--synthesis", "R", *small]) == 2  # no data here
    said = capsys.readouterr()
    assert "  published: 67M (Machine translation" in said.out
    assert said.out.count("  published: ") == 1, "254M is a re-run's, of another model"
    assert "(it does not answer, and nothing of it was downloaded before); these files" in said.err
    assert main(["train", "summarization-cnndm", *small]) == 2
    assert "published: no count of this row is known" in capsys.readouterr().out


def test_a_check_without_its_data_still_tells_the_costs(tmp_path, capsys):
    recipe = dump(language_model(tmp_path))
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.replace("text.txt", "gone.txt"))
    assert main(["train", str(path), "--check"]) == 2
    streams = capsys.readouterr()
    assert "the data cannot be read; with a vocabulary as large as text.vocab_size" in streams.out
    assert "FLOPs per token" in streams.out
    assert "gone.txt does not exist" in streams.err


def test_closed_streams_stop_no_command(monkeypatch):
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert main(["list"]) == 0
    assert main(["train", "no-such-recipe"]) == 2
    assert sys.stdin.read() == ""
    for name in ("stdin", "stdout", "stderr"):
        getattr(sys, name).close()


def test_a_terminal_that_knows_ascii_alone_gets_escapes(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii"))
    assert main(["list"]) == 0
    sys.stdout.flush()
    assert b"(x[j] Wk)" in raw.getvalue()


def test_a_deleted_current_directory_is_said_in_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["recipes"]) == 2
    assert capsys.readouterr().err == (
        "synthesizer: error: the current directory was deleted; change to another\n"
    )


def test_another_recipe_in_the_same_directory_is_refused(tmp_path, capsys):
    path, out = tmp_path / "recipe.toml", str(tmp_path / "run")
    path.write_text(dump(language_model(tmp_path, "train.steps=2")))
    assert main(["train", str(path), "--out", out]) == 0
    assert main(["train", str(path), "--out", out, "--set", "train.steps=3"]) == 2
    assert "another recipe (train.steps: 2 -> 3)" in capsys.readouterr().err
    assert main(["train", str(path), "--out", out]) == 0
    assert f"{out} is finished; nothing to do" in capsys.readouterr().out
