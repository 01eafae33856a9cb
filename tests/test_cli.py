import io
import subprocess
import sys

import pytest

import synthesizer_attention
from synthesizer_attention.cli import main
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


def test_no_words_at_all_print_the_help():
    command = [sys.executable, "-m", "synthesizer_attention"]
    shown, bare = (
        subprocess.run([*command, *words], text=True, capture_output=True, env=environment())
        for words in (["--help"], [])
    )
    assert bare.stdout.split() == shown.stdout.split()
    assert "compare" in bare.stdout
    assert (bare.stderr, bare.returncode) == ("", 2)


def test_the_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"synthesizer {synthesizer_attention.__version__}\n"


def test_the_list_shows_every_variant_with_its_brackets(capsys):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    assert "B[i,j] = (x[i] Wq)" in printed
    assert "factorized_dense" in printed
    assert "none" in printed
    assert "R = random" in printed


def test_recipes_are_listed_with_task_data_and_cost(capsys):
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (shift,) = [line for line in lines if line.startswith("│ shift ")]
    assert "probe" in shift
    assert "500 steps" in shift


def test_a_users_mistake_is_one_line_and_code_two(capsys):
    assert main(["train", "no-such-recipe"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("synthesizer: error: no recipe 'no-such-recipe'")
    assert error.count("\n") == 1


def test_an_unknown_option_is_code_two(capsys):
    assert main(["train", "shift", "--no-such-option"]) == 2
    assert "--no-such-option" in capsys.readouterr().err


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


def test_a_check_tells_the_published_count_of_the_same_row(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("SYNTHESIZER_DATA", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nobody
    small = ["--check"]  # the printed count is the paper's
    for change in ("num_layers=1", "d_model=64", "d_ff=64"):
        small += ["--set", f"model.{change}"]
    assert main(["train", "mt-wmt14-ende", "--synthesis", "R", *small]) == 2  # no data here
    said = capsys.readouterr()
    assert "  published: 67M (Machine translation" in said.out
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


def test_a_data_file_in_place_of_a_recipe_is_answered_with_the_command_for_it(tmp_path, capsys):
    data = tmp_path / "reviews.csv"
    data.write_text("text,label\n")
    assert main(["train", str(data)]) == 2
    assert f"for a file of data: synthesizer compare {data}, or --set data.train" in (
        capsys.readouterr().err
    )


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "RUN"], "holds no recipe.toml, so it is not a run"),
        (["evaluate", "RUN", "--split", "tset"], "--split is 'tset'; choose from train"),
        (["generate", "RUN", "--checkpoint", "bst"], "--checkpoint is 'bst'; choose from best"),
    ],
)
def test_what_cannot_be_measured_is_said(arguments, message, tmp_path, capsys):
    assert main([str(tmp_path) if word == "RUN" else word for word in arguments]) == 2
    assert message in capsys.readouterr().err
