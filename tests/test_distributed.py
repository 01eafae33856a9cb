import json
import math
import os
import platform
import re
import signal
import socket
from pathlib import Path

import pytest
import torch

from corpus import pairs, small, write_tsv
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe import dump
from synthesizer_attention.run.run import Run
from synthesizer_attention.training.loop import fit, open_accelerator
from tiny import language_model

SHARDED = Path(__file__).with_name("sharded.py")


def test_two_processes_take_the_steps_of_one(tmp_path, ranks):
    """Seven windows per batch: the processes have unequal shares of the targets.

    Validation is two batches, one for each.
    """
    changes = ("train.batch_tokens=84", "train.accumulate=2", "evaluate.batch_tokens=24")
    recipe = language_model(tmp_path, *changes)
    (tmp_path / "recipe.toml").write_text(dump(recipe))
    alone, together = Run(tmp_path / "alone"), Run(tmp_path / "together")
    fit(recipe, alone)
    command = [tmp_path / "recipe.toml", "--out", together.path]
    (code, said, error), (_, others, _) = (rank.wait() for rank in ranks(command, command))
    assert code == 0, error
    assert said.count("step 3/12") == 1
    assert others == "", "only the first process speaks"
    pairs = zip(_numbers(alone.metrics()), _numbers(together.metrics()), strict=True)
    assert all(math.isclose(one, two, rel_tol=1e-5) for one, two in pairs)
    for name in ("tokens", "lr"):
        ours, theirs = alone.metrics(), together.metrics()
        assert [line.get(name) for line in ours] == [line.get(name) for line in theirs]


@pytest.fixture
def ranks(forks, tmp_path):
    """ranks(words, ...): processes of one training, in the variables that torchrun sets.

    `data` may give each a folder of local copies; `env` and `how` are those of `forks`.
    """
    started = []

    def start(*commands, data=None, env=None, **how):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {"WORLD_SIZE": str(len(commands)), "MASTER_ADDR": "127.0.0.1", **(env or {})}
        for rank, words in enumerate(commands):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port)}
            own |= {"SYNTHESIZER_DATA": str(data[rank])} if data else {}
            given = {"cwd": tmp_path, "env": {**shared, **own}, **how}
            started.append(forks.start("train", *words, "--plain", **given))
        return started

    yield start
    for process in started:
        process.kill()


def test_sharded_layers_take_the_steps_of_whole_ones(ranks):
    """Layers and the root wrapped by FSDP2: encoder-decoders failed at cross-attention's keys."""
    (code, said, error), _ = (rank.wait() for rank in ranks((), (), script=SHARDED))
    assert code == 0, error
    cases = [line.split() for line in said.splitlines()]
    assert len(cases) == 6
    assert {tuple(case): float(off) for *case, off in cases if float(off) > 1e-6} == {}


TRANSLATES = ("model.num_layers=1", "model.dropout=0.0", "model.max_len=16", "model.d_ff=16")
TRANSLATES += ("train.steps=12", "train.log_every=3", "train.checkpoint_every=4")
TRANSLATES += (
    "evaluate.every=6",
    "evaluate.limit=3",
    "evaluate.batch_tokens=16",
    "evaluate.beam=2",
)
SHARES = """
from torch.distributed.tensor import DTensor
from synthesizer_attention.cli import main
from synthesizer_attention.training import evaluate as module, loop

measure, build, built = module._measure, loop.build_model, []

def tell(model, *given):
    weights = [w for name, w in model.named_parameters() if ".layers." in name]
    if built and isinstance(weights[0], DTensor):
        own = sum(weight.to_local().numel() for weight in weights)
        print("holds", own / sum(weight.numel() for weight in weights), len(built), flush=True)
    return measure(model, *given)

def count(*given):
    built.append(given)
    return build(*given)

module._measure, loop.build_model = tell, count
assert main(["train", "recipe.toml", "--out", "mixed", "--plain"]) == 0
"""


@pytest.mark.parametrize(("first", "optimizer"), [("sharded", "adam"), ("alone", "adafactor")])
def test_sharded_training_goes_on_where_one_process_stopped_and_back(
    tmp_path, ranks, forks, first, optimizer
):
    """FSDP on a CPU was plain data parallel without a word. All die at step 6, and resume at 4.

    Validation has three batches, and answers of two beams, on the shards: no process has a copy.
    """
    changes = ("train.batch_tokens=84", "train.accumulate=2", f"train.optimizer={optimizer}")
    if first == "sharded":
        recipe = language_model(tmp_path, *changes, "evaluate.batch_tokens=24", "evaluate.limit=5")
    else:
        path = write_tsv(tmp_path / "pairs.tsv", pairs(100))
        recipe = small("translation", f"data.train={path}", *changes, *TRANSLATES)
    (tmp_path / "recipe.toml").write_text(dump(recipe))
    alone, mixed = Run(tmp_path / "alone"), Run(tmp_path / "mixed")
    fit(recipe, alone)
    (tmp_path / "shares.py").write_text(SHARES)
    dies = {"dies_in": "synthesizer_attention.training.loop:Checkpointer.save_best"}

    def train(how, **ends):
        if how == "alone":
            words = ("train", "recipe.toml", "--out", "mixed")
            return [forks.run(*words, cwd=tmp_path, **ends)]
        fsdp = {"ACCELERATE_USE_FSDP": "true"}
        started = ranks((), (), env=fsdp, script=tmp_path / "shares.py", **ends)
        ended = [rank.wait() for rank in started[-2:]]
        for _, said, _ in ended:
            held = re.findall(r"holds (\S+) (\d+)", said)
            assert len(held) >= 2, ended
            assert all(0.3 < float(share) < 0.7 for share, _ in held), held
            assert {built for _, built in held} == {"1"}, "no copy is built"
        return ended

    assert {code for code, *_ in train(first, **dies)} == {-9}
    ended = train("alone" if first == "sharded" else "sharded")
    assert {code for code, *_ in ended} == {0}, ended
    assert "resuming mixed at step 4" in ended[0][1] + ended[0][2]
    numbers = zip(_numbers(alone.metrics()), _numbers(mixed.metrics()), strict=True)
    assert all(math.isclose(one, two, rel_tol=1e-6) for one, two in numbers)


SLOW = """
import os, time
from datetime import timedelta
from accelerate import PartialState
from synthesizer_attention.cli import main
from synthesizer_attention.tasks import stream

rank, quick, slept = os.environ["RANK"], stream.join_documents, []

def slow(*args):
    if not slept and (rank == "0" or os.path.exists("shared")):
        slept.append(time.sleep(4))  # the first of three splits
    print("encoded", flush=True)
    return quick(*args)

stream.join_documents = slow
os.environ["SYNTHESIZER_CACHE"] = "cache" if os.path.exists("shared") else "cache" + rank
PartialState(cpu=True, timeout=timedelta(seconds=3))
assert main(["train", "recipe.toml", "--out", "run", "--plain"]) == 0
"""


@pytest.mark.parametrize("cache", ["shared", pytest.param("own", marks=pytest.mark.slow)])
def test_others_wait_for_long_encoding_beyond_the_timeout_of_a_step(tmp_path, ranks, cache):
    """They died in a barrier after ten minutes, NCCL's default; here after three seconds."""
    (tmp_path / "recipe.toml").write_text(dump(language_model(tmp_path)))
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / cache).touch()
    ended = [rank.wait() for rank in ranks((), (), script=tmp_path / "slow.py")]
    assert [code for code, *_ in ended] == [0, 0], ended
    encoded = sorted(said.count("encoded") for _, said, _ in ended)
    assert encoded == ([0, 3] if cache == "shared" else [3, 3]), "one process per cache encodes"


FAULTS = """
import resource, torch
from synthesizer_attention.run.recipe import load_recipe
from synthesizer_attention.training.loop import open_accelerator

open_accelerator(load_recipe("shift"))
for number in range(40):
    [torch.ones(2**20) for _ in range(20)]
    if number == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or torch.accelerator.is_available(), reason="glibc's heap"
)
def test_training_on_cpu_uses_freed_memory_again(forks, tmp_path):
    (tmp_path / "faults.py").write_text(FAULTS)
    code, said, error = forks.run(cwd=tmp_path, script=tmp_path / "faults.py")
    assert code == 0, error
    pages_of_one_step = 20 * 2**20 * 4 // 4096
    assert int(said) < pages_of_one_step


def test_processes_that_read_different_data_do_not_train(tmp_path, ranks):
    folders = [tmp_path / "one", tmp_path / "two"]
    for number, folder in enumerate(folders):
        (folder / "set").mkdir(parents=True)
        rows = [json.dumps({"text": f"a text of {number} and {row}"}) for row in range(60)]
        (folder / "set" / "train.jsonl").write_text("\n".join(rows))
    recipe = language_model(tmp_path, "data.train=[]", "data.local=set")
    (tmp_path / "own.toml").write_text(dump(recipe))
    command = [tmp_path / "own.toml", "--out", tmp_path / "run"]
    for process in ranks(command, command, data=folders):
        code, _, error = process.wait()
        assert code == 2
        assert "process 1 reads other data than process 0" in error.splitlines()[-1]


def test_processes_with_different_recipes_do_not_train(tmp_path, ranks):
    """They did, and reported success."""
    (tmp_path / "own.toml").write_text(dump(language_model(tmp_path)))
    first = [tmp_path / "own.toml", "--out", tmp_path / "run"]
    for process in ranks(first, [*first, "--set", "train.lr=0.5"]):
        code, _, error = process.wait()
        assert code == 2
        assert error.splitlines()[-1] == (
            "synthesizer: error: process 1 was started with another recipe than process 0 "
            "(train.lr: 0.001 -> 0.5); start all of them with the same command"
        )
        assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


def test_a_process_that_dies_is_one_line_on_the_others(tmp_path, ranks):
    recipe = language_model(tmp_path, "train.steps=100000", "evaluate.every=100000")
    (tmp_path / "own.toml").write_text(dump(recipe))
    command = [tmp_path / "own.toml", "--out", tmp_path / "run"]
    first, second = ranks(command, command)
    first.wait_for("step")
    second.kill()
    code, _, error = first.wait()
    assert code == 2
    assert error.splitlines() == [
        "synthesizer: error: process 0: another process of this training ended; "
        "see what it said, and run the same command to continue from the last checkpoint"
    ]


def test_a_signal_to_one_process_stops_all_in_the_same_step(tmp_path, ranks):
    recipe = language_model(tmp_path, "train.steps=100000", "evaluate.every=100000")
    (tmp_path / "own.toml").write_text(dump(recipe))
    command = [tmp_path / "own.toml", "--out", tmp_path / "run"]
    first, second = ranks(command, command)
    first.wait_for("step")
    os.kill(second.pid, signal.SIGTERM)
    ended = [process.wait() for process in (first, second)]
    told = [re.findall(r"interrupted at step (\d+) of", said + error) for _, said, error in ended]
    assert told[0] == told[1] != []
    assert [*(tmp_path / "run" / "checkpoints").glob(f"step-{told[0][0]}.safetensors")]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("ACCELERATE_USE_FSDP", "asks to shard the model, and this is the only process; start"),
        ("ACCELERATE_USE_DEEPSPEED", "is set, which is not done here; unset it; configs/fsdp.yaml"),
    ],
)
def test_what_a_launcher_asks_for_and_cannot_have_is_refused(tmp_path, monkeypatch, asked, said):
    monkeypatch.setenv(asked, "true")
    with pytest.raises(UserError, match=f"^{asked} {said}"):
        open_accelerator(language_model(tmp_path))


def test_training_alone_where_more_were_asked_for_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(UserError, match="without MPI, started one; use torchrun --nproc_per_node"):
        open_accelerator(language_model(tmp_path))


def _numbers(lines):
    for line in lines:
        for value in line.values():
            yield from value.values() if isinstance(value, dict) else [value]
