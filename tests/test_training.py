"""Training runs and their checkpoints: the same bits however often they are stopped."""

import json
import math
import os
import signal
import threading
from concurrent.futures import wait
from functools import partial

import pytest
import torch
from accelerate import Accelerator, PartialState
from safetensors.torch import load_file

import loop as tool
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.progress import Interrupted, Progress
from synthesizer_attention.run.records import read_arrays
from synthesizer_attention.run.run import Run
from synthesizer_attention.tasks import build_task
from synthesizer_attention.training import preview
from synthesizer_attention.training.checkpoint import (
    Checkpoint,
    average_weights,
    newest_checkpoint,
    numbered,
    prune,
    read_checkpoint,
    read_weights,
    write_checkpoint,
)
from synthesizer_attention.training.loop import Loop, fit, open_accelerator
from tiny import language_model


class Told(Progress):
    """Keeps what it is told, and may act on it."""

    def __init__(self, at=None, act=None):
        self.said, self.at, self.act = [], at, act

    def show(self, step, steps, loss, rate, left):
        if step == self.at:
            self.act()

    def say(self, text):
        self.said.append(text)


def stop_at(step, number=signal.SIGTERM):
    """A progress that asks its own process to stop."""
    return Told(at=step, act=lambda: os.kill(os.getpid(), number))


def outcome(run):
    """What must be bit-equal: the metrics and the weights of a finished run."""
    return (run.path / "metrics.jsonl").read_bytes(), load_file(run.model / "model.safetensors")


def assert_same_outcome(first, second):
    (metrics, weights), (other_metrics, other_weights) = outcome(first), outcome(second)
    assert metrics == other_metrics
    assert weights.keys() == other_weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, other_weights[name]), name


def test_a_finished_run_directory_holds_all_that_is_promised(tiny_run):
    _, run, result = tiny_run
    names = {path.name for path in run.path.iterdir()} - {".lock"}
    files = {"recipe.toml", "metrics.jsonl", "timing.jsonl", "result.json", "samples.txt"}
    assert names == files | {"statistics.npz", "attention.npz", "model", "checkpoints"}
    assert result == run.result()
    wanted = {"metrics", "signatures", "parameters", "flops_per_token", "seed", "commit"}
    assert wanted | {"versions", "training_tokens_per_second"} <= result.keys()
    assert (run.path / "attention.npz").stat().st_size < 100_000
    arrays = read_arrays(run.path / "attention.npz")
    for stack in ("encoder", "decoder"):
        if f"{stack}.map" in arrays:
            tokens = arrays[f"{stack}.tokens"].tobytes().decode().split("\0")[:-1]
            assert len(tokens) == arrays[f"{stack}.map"].shape[-1]
    kept = {path.stem for path in run.checkpoints.iterdir()}
    assert kept == {"best", "last", "averaged"}
    lines = run.metrics()
    assert [line["step"] for line in lines if "loss" in line] == [3, 6, 9, 12]
    assert [line["step"] for line in lines if "validation" in line] == [6, 12]
    assert lines[0].keys() == {"step", "loss", "lr", "grad_norm", "tokens"}  # and no clock
    text = (run.path / "result.json").read_text()
    json.loads(text, parse_constant=lambda constant: pytest.fail(constant))  # as any reader does


def test_a_finished_run_is_not_trained_again(tiny_run):
    recipe, run, result = tiny_run
    before = (run.path / "metrics.jsonl").stat().st_mtime_ns
    assert fit(recipe, run) == result
    assert (run.path / "metrics.jsonl").stat().st_mtime_ns == before


def test_the_model_folder_loads_as_any_other_and_averages_the_last_checkpoints(tiny_run):
    from huggingface_hub import ModelCard
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _, run, result = tiny_run
    model = AutoModelForCausalLM.from_pretrained(run.model)
    averaged = read_weights(run.checkpoints / "averaged.safetensors")
    assert result["averaged_steps"] == [8, 12]
    torch.testing.assert_close(model.model.embedding.weight, averaged["model.embedding.weight"])
    assert AutoTokenizer.from_pretrained(run.model).decode([4 + 97]) != ""
    card = ModelCard.load(run.model / "README.md")
    assert (card.data.pipeline_tag, card.data.license) == ("text-generation", "unknown")
    told = {each.metric_type: each.metric_value for each in card.data.eval_results}
    assert told == {name: round(value, 4) for name, value in result["metrics"].items()}
    assert {each.dataset_split for each in card.data.eval_results} == {result["split"]}
    assert 'synthesis = "random+dot"' in card.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(tiny_run, tmp_path, number):
    recipe, run, _ = tiny_run
    again = Run(tmp_path / "run")
    with pytest.raises(Interrupted, match="interrupted at step 4 of 12; run the same command"):
        fit(recipe, again, stop_at(3, number))
    told = Told()
    fit(recipe, again, told)
    assert told.said[0] == f"resuming {again.path} at step 4"
    assert_same_outcome(again, run)


def test_a_damaged_checkpoint_is_replaced_by_the_one_before(tiny_run, tmp_path):
    recipe, run, _ = tiny_run
    again = Run(tmp_path / "run")
    for step in (6, 9):
        with pytest.raises(Interrupted):
            fit(recipe, again, stop_at(step))
    newest = numbered(again.checkpoints, "step")[-1][1]
    newest.write_bytes(newest.read_bytes()[:-100])
    told = Told()
    fit(recipe, again, told)
    assert "is damaged; going back to the one before it" in told.said[0]
    assert_same_outcome(again, run)


def test_a_log_that_is_not_as_its_checkpoint_knows_it_is_refused(tiny_run, tmp_path):
    """An edited loss of an unfinished run was believed."""
    recipe, run, _ = tiny_run
    again = Run(tmp_path / "run")
    with pytest.raises(Interrupted):
        fit(recipe, again, stop_at(6))
    file = again.path / "metrics.jsonl"
    text = file.read_text()
    for damaged in (text.replace('"loss": 5', '"loss": 4', 1), text[: len(text) // 2], ""):
        assert damaged != text
        file.write_text(damaged)
        with pytest.raises(UserError, match=r"metrics.jsonl is not as the checkpoint of st"):
            fit(recipe, again)
    file.write_text(text + '{"step": 9, "loss": 1.0}\n{"step": 10, "lo')
    fit(recipe, again)
    assert_same_outcome(again, run)


def test_two_runs_of_one_recipe_are_equal_and_another_seed_differs(tmp_path):
    runs = [Run(tmp_path / name) for name in ("first", "second", "third")]
    for run, seed in zip(runs, (1, 1, 2), strict=True):
        fit(language_model(tmp_path, f"seed={seed}", "model.dropout=0.2", "train.steps=4"), run)
    assert_same_outcome(runs[0], runs[1])
    assert outcome(runs[0])[0] != outcome(runs[2])[0]


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_last_good_checkpoint(tmp_path):
    recipe = language_model(tmp_path, "train.lr=1e30", "train.clip=0", "train.checkpoint_every=1")
    run = Run(tmp_path / "run")
    with pytest.raises(UserError, match=r"the loss is .* at step \d+; .*lower train.lr") as caught:
        fit(recipe, run)
    step, newest = numbered(run.checkpoints, "step")[-1]
    assert f"at step {step + 1}; the last good checkpoint is {newest}" in str(caught.value)
    assert not run.is_finished


def test_training_stops_when_patience_ends(tmp_path):
    changes = ("train.lr=1e-12", "train.patience=2", "evaluate.every=1", "train.steps=50")
    result = fit(language_model(tmp_path, *changes), Run(tmp_path / "run"))
    assert result["steps"] == result["best_step"] + 2 < 50


def test_the_best_weights_are_kept_when_later_ones_are_worse(tmp_path):
    changes = ("train.lr=3.0", "train.warmup=0", "evaluate.every=1", "train.schedule=constant")
    run = Run(tmp_path / "run")
    result = fit(language_model(tmp_path, *changes), run)
    lines = [line for line in run.metrics() if "validation" in line]
    values = {line["step"]: line["validation"]["bits_per_byte"] for line in lines}
    assert result["best_step"] == min(values, key=values.get) < result["steps"]
    assert result["validation"]["bits_per_byte"] == min(values.values())
    best = read_weights(run.checkpoints / "best.safetensors")
    assert torch.equal(best["model.embedding.weight"], outcome(run)[1]["model.embedding.weight"])


def test_training_may_start_from_another_run_and_from_no_other_folder(tiny_run, tmp_path):
    recipe, run, result = tiny_run
    train = {"start_from": str(run.path), "lr": 1e-12, "average": 0}
    changed = recipe.model_copy(update={"train": recipe.train.model_copy(update=train)})
    again = fit(changed, Run(tmp_path / "run"))
    assert again["metrics"]["loss"] == pytest.approx(result["metrics"]["loss"], rel=1e-4)
    recipe = language_model(tmp_path, f"train.start_from={tmp_path / 'nowhere'}")
    with pytest.raises(UserError, match="nowhere"):
        fit(recipe, Run(tmp_path / "other"))


def test_accumulating_two_half_batches_takes_the_step_of_one(tmp_path):
    """The loss of a step is the mean over the targets of all its batches, not a mean of means."""
    recipe = language_model(tmp_path, "train.batch_tokens=60")
    task = build_task(recipe)
    loops = [
        Loop(recipe, Run(tmp_path), task, Accelerator(mixed_precision="no"), Progress())
        for _ in range(2)
    ]
    one, two = [next(task.train_batches(step)) for step in range(2)]
    joined = {name: torch.cat([one.inputs[name], two.inputs[name]]) for name in one.inputs}
    numbers = (one.num_targets + two.num_targets, one.num_tokens + two.num_tokens)
    loops[0].take_step([one, two])
    loops[1].take_step([type(one)(joined, *numbers, ())])
    for ours, theirs in zip(loops[0].model.parameters(), loops[1].model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_step_waits_neither_for_its_batches_nor_for_what_it_measures(tmp_path, monkeypatch):
    """A GPU stood still while each step's loss was read and the next batch was made."""
    recipe = language_model(tmp_path)
    task, makers, reads = build_task(recipe), [], []
    plain = task.train_batches

    def watched(*args, **how):
        for batch in plain(*args, **how):
            makers.append(threading.get_ident())
            yield batch

    monkeypatch.setattr(task, "train_batches", watched)
    loop = Loop(recipe, Run(tmp_path), task, open_accelerator(recipe), Progress())
    batches = loop.batches()
    for name in ("tolist", "item", "__float__"):
        real = getattr(torch.Tensor, name)
        spy = lambda tensor, real=real: reads.append(tensor) or real(tensor)  # noqa: E731
        monkeypatch.setattr(torch.Tensor, name, spy)
    for step in range(3):
        loop.take_step(next(batches))
        assert len(reads) == step, "what the step before measured"
    wait([loop.ahead])
    assert len(makers) == 4, "one ahead"
    assert threading.get_ident() not in makers


def test_a_loss_that_is_not_finite_names_its_step_and_is_in_no_checkpoint(tmp_path, monkeypatch):
    recipe = language_model(tmp_path, "train.checkpoint_every=1", "train.log_every=100")
    real = Loop._loss

    def broken(loop, batch, count):
        return real(loop, batch, count) * (math.nan if loop.state.step == 4 else 1)

    monkeypatch.setattr(Loop, "_loss", broken)
    run = Run(tmp_path / "run")
    with pytest.raises(UserError, match=r"loss is nan .* at step 5; .*step-4\.safetensors; lower"):
        fit(recipe, run)
    assert not (run.checkpoints / "step-5.safetensors").exists()


def test_a_tracker_gets_the_lines_of_metrics_by_option(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = Run(tmp_path / "run")
    fit(language_model(tmp_path, "train.steps=6"), run, tracker="tensorboard")
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    logged = [line["loss"] for line in run.metrics() if "loss" in line]
    tracked = [event.value for event in events.Scalars("train/loss")]
    assert tracked == pytest.approx(logged)
    assert events.Scalars("validation/bits_per_byte")


def test_a_tracker_that_is_unknown_or_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(PartialState, "_shared_state", {})  # as in a fresh process
    recipe = language_model(tmp_path)
    with pytest.raises(UserError, match=r"--track is 'wand'; choose from .*wandb"):
        fit(recipe, Run(tmp_path / "run"), tracker="wand")
    with pytest.raises(UserError, match="--track needs swanlab, which is not installed"):
        fit(recipe, Run(tmp_path / "run"), tracker="swanlab")


def begun(folder, synthesis, *changes):
    """A loop after six steps, and their losses."""
    recipe = language_model(folder, "train.lr=1e-2", *changes, synthesis=synthesis)
    loop = Loop(recipe, Run(folder), build_task(recipe), open_accelerator(recipe), Progress())
    batches, losses = loop.batches(), []
    for _ in range(6):
        loop.take_step(next(batches))
        loop.read()
        losses.append(loop.step_loss)
    return loop, losses


@pytest.mark.parametrize("synthesis", ["random+dot", "dense", "factorized_dense"])
def test_bfloat16_learns_what_float32_learns_and_keeps_float32_weights(tmp_path, synthesis):
    _, exact = begun(tmp_path, synthesis)
    loop, rough = begun(tmp_path, synthesis, "train.precision=bfloat16")
    assert exact != rough
    assert exact == pytest.approx(rough, rel=1e-2)
    assert {weight.dtype for weight in loop.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("gain", [1.5, 1.05])
def test_auto_is_the_faster_precision_and_stays_what_a_run_began_with(tmp_path, gain, monkeypatch):
    seconds = {"float32": gain, "bfloat16": 1.0}
    monkeypatch.setattr(preview, "time_step", lambda recipe, task: seconds[recipe.train.precision])
    recipe = language_model(tmp_path, "train.precision=auto", "train.steps=2")
    found = fit(recipe, Run(tmp_path / "run"))
    chosen = "bfloat16" if gain > preview.GAIN else "float32"
    assert Run(tmp_path / "run").recipe().train.precision == chosen
    said = list(preview.describe(recipe))
    told = f"precision: {chosen} (a step in bfloat16 is {gain:.2f} times as fast here; "
    assert f"{told}auto asks for 1.1)" in said
    seconds.update(float32=1.0, bfloat16=gain)  # another machine, or a busy one
    assert fit(recipe, Run(tmp_path / "run")) == found
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="auto, which one process chooses by its own clock"):
        fit(recipe, Run(tmp_path / "other"))


def test_a_compiled_run_learns_and_saves_what_an_eager_one_does(tmp_path, monkeypatch):
    """Traced and differentiated as by the default compiler, whose own part takes a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    eager, plainly = begun(tmp_path, "random+dot")
    compiled, fast = begun(tmp_path, "random+dot", "train.compile=true")
    assert plainly == pytest.approx(fast, rel=1e-4)
    assert eager.model.state_dict().keys() == compiled.model.state_dict().keys()


def some_checkpoint(value=1.0, step=3):
    tensors = {"weights/a": torch.full((2, 5), value), "optimizer/a/step": torch.tensor(step)}
    return Checkpoint(tensors, {"step": step})


def test_a_checkpoint_is_read_as_it_was_written_or_not_at_all(tmp_path):
    path = tmp_path / "c"
    write_checkpoint(path, some_checkpoint())
    read = read_checkpoint(path)
    assert read.meta == {"step": 3}
    torch.testing.assert_close(read.part("weights/"), {"a": torch.ones(2, 5)})
    assert read.part("optimizer/")["a/step"].shape == ()
    whole = path.read_bytes()
    damaged = [whole[:cut] for cut in (0, 4, len(whole) // 2, len(whole) - 1)]
    damaged += [whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:]]
    damaged += [whole.replace(b'\\"step\\": 3', b'\\"step\\": 4')]
    for content in damaged:
        path.write_bytes(content)
        assert read_checkpoint(path) is None
    with pytest.raises(UserError, match="is damaged; train the run again"):
        read_weights(path)
    with pytest.raises(UserError, match="is not there; train the run again"):
        read_weights(tmp_path / "best.safetensors")


def test_the_newest_whole_checkpoint_serves_and_the_damage_is_told(tmp_path):
    assert newest_checkpoint(tmp_path, print) is None
    for step in (9, 10, 11):
        write_checkpoint(tmp_path / f"step-{step}.safetensors", some_checkpoint(step=step))
    damaged = tmp_path / "step-11.safetensors"
    damaged.write_bytes(b"half")
    said = []
    assert newest_checkpoint(tmp_path, said.append).meta == {"step": 10}
    assert said == [f"checkpoint {damaged} is damaged; going back to the one before it"]


def test_pruning_keeps_what_it_is_told_and_other_kinds(tmp_path):
    for name in ("step-2", "step-10", "step-9", "best-2", "last"):
        write_checkpoint(tmp_path / f"{name}.safetensors", some_checkpoint())
    prune(tmp_path, "step", [10])
    assert [step for step, _ in numbered(tmp_path, "step")] == [10]
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["best-2", "last", "step-10"]


def test_averaging_is_the_mean_of_the_weights(tmp_path):
    paths = [tmp_path / str(value) for value in (1, 2, 6)]
    for path in paths:
        write_checkpoint(path, some_checkpoint(float(path.name)))
    torch.testing.assert_close(average_weights(paths), {"a": torch.full((2, 5), 3.0)})


def test_the_tool_times_our_loop_and_a_bare_one(tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "ROUNDS", 2)
    recipe = language_model(tmp_path, "train.log_every=1")
    ours, bare, size = tool.measure(recipe, build_task(recipe), steps=2)
    assert len(ours) == len(bare) == 2
    assert min(*ours, *bare, size) > 0
