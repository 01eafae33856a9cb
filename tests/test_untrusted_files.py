"""Files that somebody else wrote: refused in words, nothing executed, written outside or lost."""

import ast
import gzip
import io
import json
import os
import pickle
import re
import resource
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import synthesizer_attention
from synthesizer_attention.cli import main
from synthesizer_attention.data.sources import open_source
from synthesizer_attention.data.tokenizer import load_tokenizer
from synthesizer_attention.errors import UserError
from synthesizer_attention.models import SynthesizerConfig
from synthesizer_attention.report.load import read_run
from synthesizer_attention.report.write import write_report
from synthesizer_attention.run import files
from synthesizer_attention.run.files import check_folder_name, write_atomically
from synthesizer_attention.run.recipe import load_recipe
from synthesizer_attention.run.recipe_keys import Data
from synthesizer_attention.run.records import read_arrays
from synthesizer_attention.run.run import Run, default_path
from synthesizer_attention.study.plan import draw_up
from synthesizer_attention.study.rows import Asked
from synthesizer_attention.training.build import load_pretrained
from test_report import make_study
from tiny import environment, language_model, write_text

SAVED = Path(__file__).parent / "saved" / "finished"


def rows(path):
    return [
        row for read in open_source(Data(train=str(path)), None).splits.values() for row in read()
    ]


SPECIAL = {
    "a pipe": (os.mkfifo, "is not a regular file; copy what it gives into one"),
    "an endless device": (lambda p: p.symlink_to("/dev/zero"), "is not a regular file"),
    "a link to itself": (lambda p: p.symlink_to(p), "cannot read|does not exist"),
}


@pytest.mark.parametrize("name", ["data.txt", "data.csv", "data.jsonl", "data.parquet"])
@pytest.mark.parametrize("kind", SPECIAL)
def test_data_that_never_ends_is_refused(tmp_path, kind, name):
    make, words = SPECIAL[kind]
    make(tmp_path / name)
    with pytest.raises(UserError, match=words):
        rows(tmp_path / name)


@pytest.mark.parametrize("path", ["a" * 300 + ".txt", "a\0b.txt"])
def test_a_path_that_cannot_be_is_refused(path):
    with pytest.raises(UserError, match=r"cannot read|does not exist|null"):
        rows(path)


def test_a_parquet_file_that_expands_a_millionfold_is_refused_within_bounded_memory(tmp_path):
    """One text of a megabyte, repeated in a few bits a row: 63 GB from 400 bytes."""
    path = tmp_path / "bomb.parquet"
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 60_000, pa.int32()), ["a" * 2**20])
    pq.write_table(pa.table({"text": repeated}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 1000
    script = (
        "import sys; from synthesizer_attention.data.sources import open_source\n"
        "from synthesizer_attention.run.recipe_keys import Data\n"
        "try:\n"
        "    for row in open_source(Data(train=sys.argv[1]), None).splits['train'](): pass\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, path], env=environment(), capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (4 * 2**30, 4 * 2**30)),
    )  # fmt: skip
    assert "expands to" in done.stdout, done.stderr


def test_a_parquet_file_that_says_it_is_large_is_refused_unread(tmp_path):
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"n": pa.array(np.zeros(2**28, dtype=np.int8))}), path)
    assert path.stat().st_size < 10**6
    with pytest.raises(
        UserError, match=r"expands to 2,147,483,648 or more, over the limit of 1,07"
    ):
        rows(path)


def test_a_packed_text_that_expands_a_thousandfold_is_refused_within_its_limit(
    tmp_path, monkeypatch
):
    """Of one line, which is never read whole."""
    monkeypatch.setattr(files, "MOST_TEXT", 2**20)
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(bytes(2**24)))
    with pytest.raises(UserError, match=r"expands to 1,\d{3},\d{3} or more, over the limit of 1,"):
        rows(path)


@pytest.mark.parametrize("name", ["d.parquet.gz", "d.jsonl.zst", "data.pkl", "data.npz", "d.zip"])
def test_compressed_and_pickled_files_are_no_data(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x1f\x8b")
    with pytest.raises(UserError, match=r"cannot read .*; expected .parquet"):
        rows(tmp_path / name)


def test_json_nested_without_end_is_a_faulty_row(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("[" * 10**6 + '\n{"text": "a"}\n')
    assert [row.fault for row in rows(path)] == ["not valid JSON", None]


def bomb_npz(path, *, claims):
    """A small .npz: of zeros that expand a thousandfold, or whose header claims a terabyte."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (2**37 if claims else 2**25,)}
    )
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file,
        file.open("a.npy", "w", force_zip64=True) as inner,
    ):
        inner.write(header.getvalue())
        for _ in range(0 if claims else 2**8):
            inner.write(bytes(2**20))


@pytest.mark.parametrize("claims", [False, True], ids=["zeros", "claims"])
def test_arrays_that_would_fill_the_memory_are_not_read(tmp_path, monkeypatch, claims):
    monkeypatch.setattr("synthesizer_attention.run.files.MOST_TEXT", 2**26)
    path = tmp_path / "statistics.npz"
    bomb_npz(path, claims=claims)
    assert path.stat().st_size < 3 * 10**6
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"is shorter than it says" if claims else "expands to"):
        read_arrays(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


@pytest.mark.parametrize(("at", "value"), [(8, 1), (10, 99)], ids=["encrypted", "packed otherwise"])
def test_arrays_that_numpy_does_not_write_are_refused(tmp_path, at, value):
    np.savez(tmp_path / "statistics.npz", a=np.zeros(3))
    content = bytearray((tmp_path / "statistics.npz").read_bytes())
    content[content.index(b"PK\x01\x02") + at] = value
    (tmp_path / "statistics.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"a.npy is encrypted or packed otherwise"):
        read_arrays(tmp_path / "statistics.npz")


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_a_pickle_among_arrays_is_not_executed(tmp_path):
    array = np.array([Payload(tmp_path / "executed")], dtype=object)
    np.savez(tmp_path / "statistics.npz", a=array)
    with pytest.raises(ValueError, match=r"allow_pickle=False"):
        read_arrays(tmp_path / "statistics.npz")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["result.json", "recipe.toml", "metrics.jsonl", "samples.txt"])
@pytest.mark.parametrize("attack", ["pipe", "device", "nested"])
def test_a_report_of_hostile_records_ends_and_names_them(tmp_path, name, attack):
    home = make_study(tmp_path / "shift")
    victim = home / "dense" / "seed2" / name
    victim.unlink()
    if attack == "pipe":
        os.mkfifo(victim)
    elif attack == "device":
        victim.symlink_to("/dev/zero")
    else:
        victim.write_text("a = " * (name == "recipe.toml") + "[" * 10**6 + "\n")
    write_report([home])
    page = (home / "report.html").read_text()
    if name in ("result.json", "recipe.toml"):
        assert f"unreadable {name}" in page


WRONG = {
    "a list of metrics": {"metrics": [1]},
    "text for a number": {"metrics": {"token_accuracy": "1"}},
    "a list for a name": {"main_metric": ["token_accuracy"]},
    "markup for a count": {"parameters": {"total": "<b>"}},
    "a count beyond all": {"parameters": {"total": 10**400}},
    "text for a speed": {"training_tokens_per_second": "fast"},
    "a list for versions": {"versions": [1]},
    "a list for signatures": {"signatures": ["a"]},
    "no data": {"data": None},
    "a list for a hash": {"recipe_hash": [1]},
}


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    return make_study(tmp_path_factory.mktemp("studied") / "shift")


@pytest.mark.parametrize("name", WRONG)
def test_a_result_of_other_types_is_unreadable(studied, tmp_path, name):
    run = shutil.copytree(studied / "dense" / "seed2", tmp_path / "seed2")
    change(run / "result.json", **WRONG[name])
    (key,) = WRONG[name]
    assert read_run(run).state.startswith(f"unreadable result.json ({key}")
    with pytest.raises(UserError, match=rf"result.json is not the record .* \({key}.*restore"):
        Run(run).result()


@pytest.mark.parametrize(
    "line",
    ['{"step": Infinity}', '{"step": "5"}', '{"step": 1, "loss": "x"}', "[1]", "null",
     '{"step": 1, "validation": [1]}', '{"step": 1, "validation": {"a": "b"}}'],
)  # fmt: skip
def test_a_log_of_other_types_is_unreadable(studied, tmp_path, line):
    run = shutil.copytree(studied / "dense" / "seed2", tmp_path / "seed2")
    (run / "metrics.jsonl").write_text(line + "\n")
    assert read_run(run).lines == []
    (run / "result.json").unlink()
    assert read_run(run).state == "unreadable metrics.jsonl"


@pytest.mark.parametrize("change_to", ["seed = inf", "steps = inf", 'steps = "5"'])
def test_a_recipe_of_other_types_is_unreadable(studied, tmp_path, change_to):
    run = shutil.copytree(studied / "dense" / "seed2", tmp_path / "seed2")
    key = change_to.partition(" ")[0]
    text = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(re.sub(rf"(?m)^{key} = .*$", change_to, text, count=1))
    assert read_run(run).state == "unreadable recipe.toml (TypeError)"


@pytest.mark.parametrize(
    "array", [np.array(1.0), np.zeros(5, dtype=[("a", "f8")]), np.zeros((3, 2), dtype=complex)]
)
def test_arrays_of_other_types_are_left_out(studied, tmp_path, array):
    run = shutil.copytree(studied / "dense" / "seed2", tmp_path / "seed2")
    np.savez(run / "statistics.npz", token_accuracy=array)
    assert read_run(run).arrays("statistics.npz") == {}


def linked(home):
    (home / "dense" / "seed2").rename(home.parent / "elsewhere")
    (home / "dense" / "seed2").symlink_to(home.parent / "elsewhere")
    return "dense/seed2"


@pytest.mark.parametrize("run", ["../elsewhere/seed1", "/etc", "a/../../../b", linked])
def test_a_study_reads_no_run_outside_of_it(tmp_path, run):
    home = make_study(tmp_path / "shift")
    if run is linked:
        run = linked(home)
    study = json.loads((home / "study.json").read_text())
    study["rows"][2]["runs"] = [run]
    (home / "study.json").write_text(json.dumps(study))
    with pytest.raises(UserError, match=r"study.json is not .*is outside of .*shift"):
        write_report([home])


def test_a_study_of_rubbish_is_refused_before_anything_is_written(tmp_path):
    for text in ("[" * 10**6, "[]", '{"shared": 1}', "{}"):
        (tmp_path / "study.json").write_text(text)
        with pytest.raises(UserError, match=r"is not the record of a comparison"):
            draw_up(Asked(recipe="shift", out=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["study.json"]


@pytest.mark.parametrize(
    "name", ["../../etc", "a/b", "..", ".", "", "a\0b", "a\\b", "a\x1b[31m", "x" * 300, "é" * 150]
)
def test_a_name_never_leaves_its_folder(tmp_path, monkeypatch, name, capsys):
    monkeypatch.chdir(tmp_path)
    recipe = language_model(tmp_path).model_copy(update={"name": name})
    with pytest.raises(UserError, match=r"the recipe's name is .*, which cannot name a folder"):
        default_path(recipe)
    with pytest.raises(UserError, match=r"the synthesis is .*, which cannot name a folder"):
        default_path(recipe.model_copy(update={"name": "n", "synthesis": name or "/"}))
    assert main(["compare", "shift", "--set", f"name={json.dumps(name)}", "--quick"]) == 2
    assert "which cannot name a folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_plain_names_are_kept():
    for name in ("shift", "python-docs", "Grüße 2", "a.b", "random*3,dot*3", "dot--random+dot"):
        assert check_folder_name(name, "it") == name


def test_a_path_that_is_too_long_is_one_line(tmp_path, capsys):
    for command in (["train", "shift", "--out", "x" * 300], ["report", "x" * 300]):
        assert main(command) == 2
        err = capsys.readouterr().err
        assert err.startswith("synthesizer: error: ")
        assert err.count("\n") == 1


def test_an_atomic_write_does_not_follow_a_planted_link(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("result.json", f".result.json.{os.getpid()}.partial"):
        (tmp_path / name).symlink_to(victim)
    write_atomically(tmp_path / "result.json", lambda path: path.write_text("new"))
    assert victim.read_text() == "mine"
    assert (tmp_path / "result.json").read_text() == "new"
    assert not (tmp_path / "result.json").is_symlink()


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(SAVED / "model", tmp_path / "model")
    return tmp_path / "model"


def change(path, **keys):
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def test_a_whole_model_folder_is_read(folder):
    assert load_pretrained(folder).config.kind == "decoder"


def test_weights_in_a_pickle_are_not_read(folder, tmp_path):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(tmp_path / "executed")))
    with pytest.raises(
        UserError, match=r"is not a model folder \(.*expected config.json and model"
    ):
        load_pretrained(folder)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "key", [{"attn_implementation": "evil/kernel"}, {"_attn_implementation": "evil/kernel"},
            {"auto_map": {"AutoConfig": "evil.Config"}}],
)  # fmt: skip
def test_a_config_that_names_code_of_others_is_refused(folder, key):
    change(folder / "config.json", **key)
    for load in (load_pretrained, SynthesizerConfig.from_pretrained):
        with pytest.raises(UserError, match=r"which names code of others; .*: remove the key"):
            load(folder)


def test_a_tokenizer_brings_no_code(folder, tmp_path):
    change(
        folder / "tokenizer_config.json",
        tokenizer_class="Evil",
        auto_map={"AutoTokenizer": ["evil.Evil", None]},
    )
    code = f"import os\nos.mkdir({str(tmp_path / 'executed')!r})\nclass Evil: pass\n"
    (folder / "evil.py").write_text(code)
    with pytest.raises(UserError, match=r"holds no tokenizer|no tokenizer.json"):
        load_tokenizer(folder)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "key", [{"d_model": 2**20}, {"vocab_size": 2**40}, {"num_layers": 10**9}, {"max_len": 2**40}]
)
def test_a_config_cannot_ask_for_more_than_the_weights_hold(folder, key):
    change(folder / "config.json", **key)
    with pytest.raises(UserError, match=r"do not fit this model|more layers than|is not a model"):
        load_pretrained(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_in_a_model_folder_is_refused(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(UserError, match=r"is not a regular file"):
        load_pretrained(folder)


@pytest.fixture
def evil(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'executed')!r})\n")
    return tmp_path / "executed"


def test_a_run_of_somebody_else_executes_nothing(evil, tmp_path, capsys):
    shutil.copytree(SAVED, "run")
    recipe = Path("run/recipe.toml")
    text = 'imports = ["evil.py"]\n' + recipe.read_text()
    recipe.write_text(text.replace('synthesis = "', 'synthesis = "evil+', 1))
    change(Path("run/model/config.json"), imports=["evil.py"], synthesis="evil")
    for command in (["evaluate", "run"], ["generate", "run"], ["report", "run"]):
        main(command)
        assert not evil.exists()
    assert main(["evaluate", "run"]) == 2
    assert "it was defined in evil.py: import that first" in capsys.readouterr().err
    for verb in ("train", "compare"):
        assert main([verb, "run/recipe.toml", "--out", "out"]) == 2
        err = capsys.readouterr().err
        assert "names 'evil.py' in imports, which would be executed, and run/recipe.toml is" in err
        assert "pass --import evil.py if you trust it" in err
    assert not evil.exists()
    assert not Path("out").exists()


@pytest.mark.parametrize("shared", ["mine.toml", "evil.py"])
@pytest.mark.parametrize("name", ["evil.py", "evil", "evil.part"])
def test_imports_that_others_may_write_need_a_word_of_the_user(evil, shared, name):
    text = Path(synthesizer_attention.__file__).parent / "recipes" / "shift.toml"
    Path("mine.toml").write_text(f'imports = ["{name}"]\n' + text.read_text())
    own = str(Path("evil.py").absolute()) if name == "evil.py" else name
    assert load_recipe("mine.toml").imports == (own,)
    Path(shared).chmod(0o666)
    with pytest.raises(
        UserError, match=rf"others may write .*{shared} .*; read it, and pass --imp"
    ):
        load_recipe("mine.toml")
    (trusted, *_) = load_recipe("mine.toml", imports=[name]).imports
    assert Path(trusted).name == name


def test_a_worker_imports_nothing_of_the_working_directory(evil, tmp_path):
    """A json.py beside the data would be imported by `python -m` in its place."""
    for name in ("json.py", "numpy.py", "random.py", "torch.py"):
        shutil.copy("evil.py", name)
    write_text(Path("text.txt"))
    command = shutil.which("synthesizer", path=str(Path(sys.executable).parent))
    words = [command] if command else [sys.executable, "-P", "-m", "synthesizer_attention"]
    words += ["compare", "text.txt", "--synthesis", "dot", "--quick", "--jobs", "1", "--plan"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert not evil.exists()


def calls():
    """Every call in the package: the file, what is called, and the keywords."""
    for path in Path(synthesizer_attention.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                keywords = {word.arg: ast.unparse(word.value) for word in node.keywords}
                yield path.name, ast.unparse(node.func), keywords


def test_no_data_is_unpickled_or_evaluated_anywhere():
    for file, called, keywords in calls():
        name = called.rpartition(".")[2]
        if name == "load" and called.partition(".")[0] in ("np", "numpy"):
            assert keywords.get("allow_pickle") == "False", file
        if called == "torch.load":
            assert keywords.get("weights_only") == "True", file
        if name == "from_pretrained" and "Embedding" not in called:
            assert keywords.get("trust_remote_code") == "False" or None in keywords, file
        assert keywords.get("trust_remote_code") in (None, "False"), file
        assert keywords.get("shell") is None, file
        assert called not in ("eval", "exec", "os.system", "os.popen", "yaml.load"), file
        assert not called.startswith(("pickle.", "marshal.", "shelve.", "joblib.", "dill.")), file


def test_no_module_imports_what_unpickles():
    for path in Path(synthesizer_attention.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            roots = {name.partition(".")[0] for name in names}
            assert not roots & {"pickle", "marshal", "shelve", "dill", "joblib", "yaml"}, path
