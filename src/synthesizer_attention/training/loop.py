"""fit(recipe, run): the one loop, on accelerate.

The loss is divided by the targets of all processes, so that N processes take the step of one. All
random numbers of a step come from (seed, batch, process): a resume needs no generator state.
"""

import ctypes
import hashlib
import math
import os
import platform
import re
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import LoggerType, gather_object, patch_environment
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from synthesizer_attention.attention.hook import kernels
from synthesizer_attention.data.batch import Batch
from synthesizer_attention.errors import UserError, one_line_for_memory, refuse_other_data
from synthesizer_attention.models.layers import Layer
from synthesizer_attention.run.progress import Interrupted, Interruption, Pace, Progress
from synthesizer_attention.run.recipe import (
    Recipe,
    change,
    differences,
    dump,
    leaves,
    parse_recipe,
)
from synthesizer_attention.run.run import RECIPE, Run, provenance
from synthesizer_attention.tasks import build_task
from synthesizer_attention.tasks.task import Task
from synthesizer_attention.training.build import (
    build_model,
    check_size,
    stable_seed,
    unique_weights,
)
from synthesizer_attention.training.checkpoint import Checkpointer, numbered
from synthesizer_attention.training.evaluate import evaluate
from synthesizer_attention.training.finish import finish
from synthesizer_attention.training.meter import now, peak_memory
from synthesizer_attention.training.optim import build_optimizer, learning_rate, set_rate

MEASURED = 1  # measure the memory of the step after this one: the optimizer's state exists then
LONGEST = timedelta(days=7)  # that others wait while one encodes; NCCL itself waits 10 minutes
TENSORBOARD = "tensorboard"
SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Environment variables in which a launcher says how many processes there are."""
SHARDED = "ACCELERATE_USE_FSDP"
UNMET = ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM")
UNMET_SHARDED = ("FSDP_OFFLOAD_PARAMS", "FSDP_ACTIVATION_CHECKPOINTING")
"""What `accelerate launch` may ask for and a training here does not do."""
_LOST = re.compile("gloo|nccl|connection (closed|reset|refused)|broken pipe|recv", re.IGNORECASE)


@dataclass
class State:
    """The progress of a run: what a checkpoint keeps beside weights and optimizer."""

    step: int = 0
    tokens: int = 0
    loss: float = 0.0  # summed over the targets since the last line of metrics.jsonl
    targets: int = 0  # since then
    best: float | None = None  # of the main metric on validation
    best_step: int = 0
    waited: int = 0  # evaluations since the best


def fit(
    recipe: Recipe,
    run: Run,
    progress: Progress | None = None,
    *,
    tracker: str | None = None,
    split: str = "test",
    data: str | None = None,
) -> dict[str, Any]:
    """Train a recipe to its last step, resuming what run holds; return its result on a split.

    `data` is the identity that the data must have, where a study knows it.
    """
    progress = progress or Progress()
    if recipe.train.precision == "auto":
        recipe = _settle_precision(recipe, run, progress)
    run.claim(recipe)
    if known := _known_result(run, progress):
        return known
    provenance()
    accelerator = open_accelerator(recipe, **_tracker_options(tracker, run))
    main = accelerator.is_main_process
    progress = progress if main else Progress()
    texts = gather_object([dump(recipe)]) if accelerator.num_processes > 1 else []
    for number, text in enumerate(texts):  # each would go on with its own
        if changed := differences(parse_recipe(texts[0]), parse_recipe(text)):
            raise UserError(
                f"process {number} was started with another recipe than process 0 "
                f"({'; '.join(changed)}); start all of them with the same command"
            )
    check_size(recipe)
    patient = distributed.new_group(backend="gloo", timeout=LONGEST) if texts else None
    with (
        _one_line_for_lost_processes(accelerator),
        run.held(recipe, progress.say) if main else nullcontext(),
        Interruption() as interruption,
    ):
        with accelerator.main_process_first():
            if known := _known_result(run, progress):  # of whoever the lock was waited for
                return known if main else {}
            kernels().prepare()
        task = build_task(recipe)
        read = [task.identity] * accelerator.num_processes
        if patient is not None:
            distributed.all_gather_object(read, task.identity, group=patient)
        for number, other in enumerate(read):
            if other != read[0]:
                raise UserError(
                    f"process {number} reads other data than process 0; let all of them read the "
                    "same files, and nothing write to them"
                )
        refuse_other_data(f"the comparison of {run.path}", data or task.identity, task.identity)
        loop = Loop(recipe, run, task, accelerator, progress)
        loop.state = State(**loop.checkpointer.resume(progress))
        if tracker and main:
            _start_tracking(accelerator, tracker, recipe, run, loop.state.step)
        try:
            loop.train(interruption)
        finally:
            for opened in accelerator.trackers:
                opened.finish()
        interruption.stops_at_once = True
        if not main:
            return {}
        best, last = loop.state.best_step, loop.state.step
        return finish(recipe, run, task, best, last, progress, accelerator.device, split)


def _settle_precision(recipe: Recipe, run: Run, progress: Progress) -> Recipe:
    """What auto means: what the run began with, or what is faster here."""
    from synthesizer_attention.training.preview import choose_precision  # which times this loop

    if run.is_begun and (run.path / RECIPE).exists():
        return change(recipe, [f"train.precision={run.recipe().train.precision}"])
    recipe, why = choose_precision(recipe, build_task(recipe))
    progress.say(why)
    return recipe


def _known_result(run: Run, progress: Progress) -> dict[str, Any] | None:
    """What a run reached that is finished already."""
    if not run.is_finished:
        return None
    progress.say(f"{run.path} is finished; nothing to do")
    return run.result()


class Loop:
    """The training of one recipe: model, optimizer, checkpoints and progress."""

    def __init__(
        self, recipe: Recipe, run: Run, task: Task, accelerator: Accelerator, progress: Progress
    ) -> None:
        self.recipe, self.run, self.task = recipe, run, task
        self.accelerator, self.progress, self.state = accelerator, progress, State()
        self.unread: deque[tuple[int, Tensor]] = deque()  # what steps measured
        self.ahead: Future[list[Batch]] | None = None
        self.stops = False  # some process was asked to
        model = build_model(recipe, task.tokenizer, task.labels)
        names = list(unique_weights(model))
        self.is_sharded = _is_asked(SHARDED)
        if self.is_sharded:
            mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
            for part in [*filter(lambda part: isinstance(part, Layer), model.modules()), model]:
                fully_shard(part, mesh=mesh)
            if task.generates:
                register_fsdp_forward_method(model, "generate")
        else:
            model = accelerator.prepare(model)
        self.model = model
        self.optimizer = accelerator.prepare(build_optimizer(model, recipe.train))
        self.checkpointer = Checkpointer(
            run, recipe.train, accelerator, self.model, self.optimizer, names, task.identity
        )
        self.forward = torch.compile(self.model) if recipe.train.compile else self.model

    def train(self, interruption: Interruption) -> None:
        """Take the steps that are left, logging, evaluating and saving on the way."""
        train, every, state = self.recipe.train, self.recipe.evaluate.every, self.state
        device, alone = self.accelerator.device, self.accelerator.num_processes == 1
        batches = self.batches()
        pace, begin, tokens = Pace(state.step), now(device), state.tokens
        while state.step < train.steps and not (train.patience and state.waited >= train.patience):
            take = self.take_measured_step if state.step == MEASURED else self.take_step
            with one_line_for_memory(self.lower_batches):
                take(next(batches), interruption.asked)
            asked = interruption.asked if alone else self.stops
            last = state.step == train.steps
            logs = state.step % train.log_every == 0 or last
            evaluates = state.step % every == 0 or last
            saves = asked or last or state.step % train.checkpoint_every == 0
            if not (logs or evaluates or saves):
                continue
            self.read()
            pace.add(now(device) - begin, state.tokens - tokens)
            if logs:
                self._log(pace)
            if evaluates:
                self._evaluate()
            if saves:
                self.checkpointer.save(asdict(state))
            if asked and not last:
                raise Interrupted(
                    f"interrupted at step {state.step} of {train.steps}; "
                    f"run the same command to continue ({self.run.path})"
                )
            begin, tokens = now(device), state.tokens
        self.checkpointer.save(asdict(state))

    def take_step(self, batches: list[Batch], asked: bool = False) -> None:
        """Update once from several batches; what it measures stays on the device until `read`."""
        accelerator, state, train = self.accelerator, self.state, self.recipe.train
        counts = self._sum(
            sum(batch.num_targets for batch in batches),
            sum(batch.num_tokens for batch in batches),
            asked,
        )
        set_rate(self.optimizer, learning_rate(state.step + 1, train))
        self.model.train()
        loss = torch.zeros((), device=accelerator.device)
        for place, batch in enumerate(batches):
            number = state.step * train.accumulate + place
            _seed_step(stable_seed(self.recipe.seed, number, accelerator.process_index))
            ready = place == len(batches) - 1
            with nullcontext() if ready else accelerator.no_sync(self.model):
                part = self._loss(batch, counts[0].clamp(min=1).float())
                accelerator.backward(part * accelerator.num_processes)
            loss += part.detach()
        norm = accelerator.clip_grad_norm_(self.model.parameters(), train.clip or math.inf)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        self.optimizer.step()
        self.optimizer.zero_grad()
        state.step += 1
        measured = torch.cat([self._sum(loss), norm.double().reshape(1), counts])
        self.unread.append((state.step, measured))
        self.read(behind=1)

    def read(self, behind: int = 0) -> None:
        """Add up what the steps measured, the last few aside: a device is still at work on those.

        So neither waits for the other, and every process learns of a signal in the same step.
        """
        state = self.state
        while len(self.unread) > behind:
            step, measured = self.unread.popleft()
            self.step_loss, self.step_norm, targets, tokens, stops = measured.tolist()
            if not (math.isfinite(self.step_loss) and math.isfinite(self.step_norm)):
                raise UserError(
                    f"the loss is {self.step_loss} and the gradient norm {self.step_norm} at step "
                    f"{step}; {self._kept()}; lower train.lr or train.table_rate"
                )
            state.tokens += int(tokens)
            state.loss += self.step_loss * targets
            state.targets += int(targets)
            self.stops = self.stops or stops > 0

    def take_measured_step(self, batches: list[Batch], asked: bool) -> None:
        """Take a step and record its peak memory in timing.jsonl."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        for kept in self.optimizer.state.values():
            tensors += [value for value in kept.values() if isinstance(value, Tensor)]
        own = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
        held = sum(tensor.nbytes for tensor in own)
        with peak_memory(self.accelerator.device) as memory:
            self.take_step(batches, asked)
        if self.accelerator.is_main_process and memory.peak is not None:
            self.run.log_time(self.state.step, {"memory_bytes": held + memory.peak})

    def batches(self) -> Iterator[list[Batch]]:
        """The batches of every step that is left, made one step ahead by a thread."""
        train, accelerator = self.recipe.train, self.accelerator
        batches = self.task.train_batches(
            self.state.step * train.accumulate,
            rank=accelerator.process_index,
            world=accelerator.num_processes,
        )
        pins = accelerator.device.type == "cuda"

        def make() -> list[Batch]:
            made = [next(batches) for _ in range(train.accumulate)]
            for batch in made if pins else ():
                batch.inputs.update({k: tensor.pin_memory() for k, tensor in batch.inputs.items()})
            return made

        with ThreadPoolExecutor(1) as thread:
            self.ahead = thread.submit(make)
            while True:
                made = self.ahead.result()
                self.ahead = thread.submit(make)
                yield made

    def _loss(self, batch: Batch, count: Tensor) -> Tensor:
        device = self.accelerator.device
        inputs = {
            name: tensor.to(device, non_blocking=True) for name, tensor in batch.inputs.items()
        }
        lower = self.recipe.train.precision == "bfloat16"  # of a step; weights stay float32
        with torch.autocast(device.type, torch.bfloat16, enabled=lower):
            loss: Tensor = self.forward(**inputs, num_items_in_batch=count).loss
        return loss

    def _sum(self, *numbers: float | Tensor) -> Tensor:
        """Numbers summed over all processes, on the device."""
        device = self.accelerator.device
        given = [torch.as_tensor(number, dtype=torch.float64) for number in numbers]
        local = torch.stack(given).to(device, non_blocking=True)
        total: Tensor = self.accelerator.reduce(local, "sum")
        return total

    def _log(self, pace: Pace) -> None:
        state, train = self.state, self.recipe.train
        loss = state.loss / max(1, state.targets)
        state.loss, state.targets = 0.0, 0
        values = {
            "loss": loss,
            "lr": learning_rate(state.step, train),
            "grad_norm": self.step_norm,
            "tokens": state.tokens,
        }
        seconds, tokens = pace.lap()
        if self.accelerator.is_main_process:
            self._record(values)
            self.run.log_time(state.step, {"seconds": seconds, "tokens": tokens})
        left = pace.seconds_per_step(state.step) * (train.steps - state.step)
        self.progress.show(state.step, train.steps, loss, tokens / max(seconds, 1e-9), left)

    def _record(self, values: Mapping[str, object]) -> None:
        self.run.log(self.state.step, values)
        if self.accelerator.trackers:
            flat: dict[str, Any] = {}
            for name, value in values.items():
                if isinstance(value, Mapping):
                    flat |= {f"{name}/{inner}": number for inner, number in value.items()}
                else:
                    flat[f"train/{name}"] = value
            self.accelerator.log(flat, step=self.state.step)

    def _evaluate(self) -> None:
        """Measure on validation, and keep the weights if they are the best so far."""
        if self.ahead is not None:
            wait([self.ahead])  # one thread at a time uses a tokenizer
        state, task = self.state, self.task
        settings, together = self.recipe.evaluate, self.accelerator
        model, sharded = together.unwrap_model(self.model), self.is_sharded
        scores = evaluate(model, task, "validation", settings, together, sharded=sharded).scores
        value = scores.metrics[task.main_metric]
        sign = 1 if task.higher_is_better else -1
        better = state.best is None or sign * value > sign * state.best
        if better:
            state.best, state.best_step, state.waited = value, state.step, 0
        else:
            state.waited += 1
        if self.accelerator.is_main_process:
            self._record({"validation": scores.metrics})
            self.progress.measure(state.step, task.main_metric, value)
        if better:
            self.checkpointer.save_best(state.step, value)

    def lower_batches(self) -> str:
        """What to do where a step does not fit in memory."""
        train = self.recipe.train
        return (
            f" at step {self.state.step + 1}; {self._kept()}; free some and run the same command, "
            f"or lower train.batch_tokens, which is {train.batch_tokens}, in another --out "
            f"(a higher train.accumulate, which is {train.accumulate}, makes up for it)"
        )

    def _kept(self) -> str:
        good = numbered(self.run.checkpoints, "step")
        return (
            f"the last good checkpoint is {good[-1][1]}" if good else "no checkpoint was made yet"
        )


def _seed_step(seed: int) -> None:
    """torch.manual_seed, which asks every kind of device, costs a small model 160 us a step."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    elif torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


def open_accelerator(recipe: Recipe, **options: Any) -> Accelerator:  # noqa: ANN401
    """Processes and devices as they were launched; the precision is not theirs to choose."""
    launched = [f"{name}={os.environ[name]}" for name in SIZES if name in os.environ]
    if not launched and {"MASTER_ADDR", "ACCELERATE_MIXED_PRECISION"} <= {*os.environ}:
        raise UserError(
            "accelerate launch --cpu was asked for several processes and, without MPI, started "
            "one; use torchrun --nproc_per_node N -m synthesizer_attention train ..."
        )
    lacks_bfloat16 = torch.cuda.is_available() and not torch.cuda.is_bf16_supported()
    if recipe.train.precision == "bfloat16" and lacks_bfloat16:
        raise UserError("train.precision is bfloat16, which this GPU lacks; use float32")
    on_cpu = not torch.accelerator.is_available()
    if on_cpu and platform.libc_ver()[0] == "glibc":
        # Use blocks of up to 32 MB again: glibc returns each, and pays to fetch the next.
        mmap_threshold, trim_threshold = -3, -1  # as malloc.h numbers them
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, 2**25)
        libc.mallopt(trim_threshold, 2**30)
    for name in (*UNMET, *(UNMET_SHARDED if _is_asked(SHARDED) else ())):
        if _is_asked(name):
            raise UserError(
                f"{name} is set, which is not done here; unset it; configs/fsdp.yaml shards"
            )
    try:
        with patch_environment(**{SHARDED: "false"}):  # shards are made here, on any device
            accelerator = Accelerator(mixed_precision="no", cpu=on_cpu, **options)
    except (ValueError, RuntimeError) as error:
        if not launched:
            raise
        cause = str(error).strip().split("\n")[0][:200]
        raise UserError(
            f"{launched[0]} says that this is one of several processes, and they cannot meet "
            f"({cause}); start them with torchrun --nproc_per_node N -m synthesizer_attention "
            f"train ..., or unset {launched[0].partition('=')[0]}"
        ) from None
    if _is_asked(SHARDED) and accelerator.num_processes == 1:
        raise UserError(
            f"{SHARDED} asks to shard the model, and this is the only process; start several "
            f"(accelerate launch --num_processes N), or unset {SHARDED}"
        )
    return accelerator


def _is_asked(name: str) -> bool:
    """Whether a variable of `accelerate launch` is on."""
    return os.environ.get(name, "").lower() in ("1", "true")


@contextmanager
def _one_line_for_lost_processes(accelerator: Accelerator) -> Iterator[None]:
    """Say what a backend's error means: another process of this training is gone."""
    try:
        yield
    except RuntimeError as error:
        if accelerator.num_processes == 1 or not _LOST.search(str(error)):
            raise
        raise UserError(
            f"process {accelerator.process_index}: another process of this training ended; "
            "see what it said, and run the same command to continue from the last checkpoint"
        ) from None


def _tracker_options(name: str | None, run: Run) -> dict[str, Any]:
    """The tracker argument of an Accelerator; the tracker's files go into the run directory."""
    if name is None:
        return {}
    if name not in LOGGER_TYPE_TO_CLASS:
        known = ", ".join(sorted(LOGGER_TYPE_TO_CLASS))
        raise UserError(f"--track is {name!r}; choose from {known}")
    if name in LoggerType.list() and name not in map(str, get_available_trackers()):
        raise UserError(f"--track needs {name}, which is not installed; run pip install {name}")
    folder = run.path if name == TENSORBOARD else run.path / "tracking"
    return {"log_with": name, "project_dir": str(folder)}


def _start_tracking(
    accelerator: Accelerator, name: str, recipe: Recipe, run: Run, step: int
) -> None:
    """Open a run of a tracker; a resumed run goes on where its metrics.jsonl does."""
    title = str(run.path)
    same = {"name": title, "id": hashlib.sha256(str(run.path.resolve()).encode()).hexdigest()[:16]}
    options = {
        TENSORBOARD: {"purge_step": step + 1},
        "wandb": {**same, "resume": "allow", "dir": str(run.path)},
        "trackio": {"name": title, "resume": "allow"},
        "mlflow": {"run_name": title},
    }
    config = None if name == TENSORBOARD else dict(leaves(recipe.model_dump()))
    project = TENSORBOARD if name == TENSORBOARD else "synthesizer"  # whose folder has its name
    accelerator.init_trackers(project, config, {name: options.get(name, {})})
