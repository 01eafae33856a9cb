"""The end of a run: choose the weights, measure them, and write what others read."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import EvalResult, ModelCardData

from synthesizer_attention.attention.fast.dispatch import has_kernel
from synthesizer_attention.errors import UserError, fenced, plain
from synthesizer_attention.metrics.labels import in_single_precision
from synthesizer_attention.models.backbone import SynthesizerPreTrainedModel
from synthesizer_attention.models.cost import (
    cache_bytes_per_token,
    count_parameters,
    flops_per_token,
)
from synthesizer_attention.run.files import cannot_write, disk_error, follow_umask
from synthesizer_attention.run.progress import Progress
from synthesizer_attention.run.recipe import Recipe, change, dump
from synthesizer_attention.run.run import Run, provenance
from synthesizer_attention.tasks import build_task
from synthesizer_attention.tasks.task import Scores, Task
from synthesizer_attention.training.build import build_model, load_pretrained, load_weights
from synthesizer_attention.training.checkpoint import (
    WEIGHTS,
    Checkpoint,
    average_weights,
    averaged_steps,
    checkpoint_path,
    prune,
    read_weights,
    write_checkpoint,
)
from synthesizer_attention.training.evaluate import (
    PROMPTS,
    Decoded,
    continuations,
    decode,
    evaluate,
    first_examples,
    source_gap,
)
from synthesizer_attention.training.maps import inspect, mean_sharpness, tokens_of

INSPECTED = 8  # examples
_HUB_TASKS = {  # as the hub calls them; others generate text
    "translation": "translation",
    "summarization": "summarization",
    "classification": "text-classification",
}


def finish(
    recipe: Recipe,
    run: Run,
    task: Task,
    best: int,
    last: int,
    progress: Progress,
    device: torch.device,
    split: str,
) -> dict[str, Any]:
    """Offer the best, last and averaged weights, score the chosen ones, write the rest."""
    folder, averaged = run.checkpoints, averaged_steps(recipe.train, last)
    offered = {
        "last": [checkpoint_path(folder, "step", last)],
        "best": [checkpoint_path(folder, "best", best)],
        "averaged": [checkpoint_path(folder, "step", step) for step in averaged],
    }
    for name, paths in offered.items():
        if paths:
            weights = average_weights(paths) if name == "averaged" else read_weights(paths[0])
            tensors = {f"{WEIGHTS}{key}": tensor for key, tensor in weights.items()}
            write_checkpoint(folder / f"{name}.safetensors", Checkpoint(tensors, {}))
    chosen = "averaged" if averaged else "best"
    start = build_model(recipe, task.tokenizer, task.labels)
    model = build_model(recipe, task.tokenizer, task.labels)
    load_weights(model, read_weights(folder / f"{chosen}.safetensors"), chosen)
    progress.say(f"training is done; measuring the {chosen} weights on {split}")
    evaluation = evaluate(model.to(device), task, split, recipe.evaluate)
    scores = evaluation.scores
    gap = source_gap(model, task, split) if task.kind == "encoder_decoder" else None
    first = first_examples(task, split, PROMPTS)
    decoded = decode(model, first) if task.decodes else None
    inspected = first_examples(task, split, INSPECTED).inputs
    arrays = inspect(start, model.cpu(), inspected)
    if recipe.evaluate.samples:
        arrays |= tokens_of(model, task.tokenizer, inspected, arrays)
    run.write_arrays("statistics.npz", in_single_precision(scores.statistics))
    run.write_arrays("attention.npz", arrays)
    if decoded is not None and task.kind == "decoder":
        scores = replace(scores, samples=continuations(task, first, decoded))
    samples = ["\n".join(f"{key}: {text}" for key, text in each.items()) for each in scores.samples]
    run.write("samples.txt", "\n\n".join(samples) + "\n" if samples else "")
    lines = [line for line in run.metrics() if line["step"] == best and "validation" in line]
    result = {
        "recipe": recipe.name,
        "recipe_hash": recipe.hash(),
        "task": recipe.task,
        "synthesis": recipe.synthesis,
        "decoder_synthesis": recipe.decoder_synthesis,
        "seed": recipe.seed,
        "main_metric": task.main_metric,
        "higher_is_better": task.higher_is_better,
        "metrics": scores.metrics,
        "signatures": scores.signatures,
        "split": split,
        "steps_per_token": evaluation.steps_per_token or None,
        "source_gap": gap,
        "checkpoint": chosen,
        "best_step": best,
        "steps": last,
        "averaged_steps": averaged,
        "validation": lines[-1]["validation"],  # of the best step
        **measure_cost(model, run, decoded),
        "sharpness": mean_sharpness(arrays),
        "data": task.report,
        **provenance(),
    }
    save_model(model, task, run, recipe, result)
    run.finish(result)
    prune(folder, "step", [])
    prune(folder, "best", [])
    return result


def measure_cost(
    model: SynthesizerPreTrainedModel, run: Run, decoded: Decoded | None
) -> dict[str, Any]:
    """What it took: parameters, arithmetic, memory and speed."""
    laps = [line for line in run.timing() if {"seconds", "tokens"} <= {*line}]
    seconds = sum(lap["seconds"] for lap in laps)
    rate = sum(lap["tokens"] for lap in laps) / seconds if seconds else None
    memory = [line["memory_bytes"] for line in run.timing() if "memory_bytes" in line]
    return {
        "parameters": count_parameters(model),
        "layers_without_bias": model.config.layers_without_bias,
        "layers_without_rotary": model.config.layers_without_rotary,
        "flops_per_token": flops_per_token(model.config),
        "cache_bytes_per_token": cache_bytes_per_token(model.config),
        "training_seconds": seconds,
        "training_tokens_per_second": rate,
        "decoding_tokens_per_second": decoded.tokens_per_second if decoded else None,
        "training_memory_bytes": memory[-1] if memory else None,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "kernel": has_kernel(best_device()),
    }


def save_model(
    model: SynthesizerPreTrainedModel, task: Task, run: Run, recipe: Recipe, result: dict[str, Any]
) -> None:
    """Write model/: weights, config, tokenizer and a card, as Hugging Face reads them."""
    task.tokenizer.model_max_length = model.config.max_len  # where truncation=True cuts a text
    try:
        model.save_pretrained(run.model)
        task.tokenizer.save_pretrained(run.model)
        follow_umask(run.model)
    except Exception as error:  # of the disk, if it is one
        cause = disk_error(error)
        if cause is None:
            raise
        raise cannot_write(run.model, cause, "the checkpoints are intact") from None
    run.write("model/README.md", model_card(recipe, result))


def best_device() -> torch.device:
    """A GPU where there is one."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if found is None else found


def load_model(
    run: Run, checkpoint: str | None = None, *, verify: bool = True
) -> SynthesizerPreTrainedModel:
    """The model of a finished run, by default with the weights in model/.

    Its files are compared with their hashes first; `verify=False` compares their sizes alone.
    """
    run.check("model/", hashes=verify)
    run.recipe()
    if not run.is_finished:
        raise UserError(f"{run.path} is not finished; train it to its end first")
    run.result()
    model = load_pretrained(run.model)
    if checkpoint is not None:
        path = run.checkpoints / f"{checkpoint}.safetensors"
        if checkpoint == "averaged" and not path.exists():
            raise UserError(f"{run.path} has no averaged weights; train with train.average=5 or so")
        load_weights(model, read_weights(path), str(path))
    return model.eval()


def measure(
    path: Path,
    split: str,
    checkpoint: str | None,
    *,
    overrides: Sequence[str] = (),
    verify: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Scores:
    """The scores of a finished run on a split of its data; its [evaluate] may be overridden.

    `say` is told where the data are no longer those that it was trained on.
    """
    for override in overrides:
        if not override.startswith("evaluate."):
            raise UserError(
                f"--set {override}: a finished run is evaluated as it was trained; only keys of "
                "[evaluate] can be changed, as in --set evaluate.beam=8"
            )
    run = Run(path)
    model, recipe = load_model(run, checkpoint, verify=verify), change(run.recipe(), overrides)
    task = build_task(recipe, tokenizer_dir=run.model)
    trained = run.result().get("data", {})
    if task.identity != (before := trained.get("identity", task.identity)):
        if task.labels != trained.get("labels"):
            raise UserError(
                f"the data have other labels than those {run.path} was trained on; evaluate it on "
                f"rows of {', '.join(trained.get('labels') or ())[:200]}, each of them in train"
            )
        say(
            f"the data are not those that {run.path} was trained on (identity {before[:12]}, now "
            f"{task.identity[:12]}): these are scores on other data than in its result.json"
        )
    return evaluate(model.to(best_device()), task, split, recipe.evaluate).scores


def model_card(recipe: Recipe, result: dict[str, Any]) -> str:
    """README.md of model/: what it is, how well it does, and the recipe that makes it again."""
    metrics = [
        f"| {plain(name)} | {value:.4f} | {plain(result['signatures'].get(name, ''))} |"
        for name, value in result["metrics"].items()
    ]
    parts = [f"| {part} | {count:,} |" for part, count in result["parameters"].items()]
    task = _HUB_TASKS.get(recipe.task, "text-generation")
    results = [
        EvalResult(
            task, recipe.name, recipe.name, name, round(value, 4), dataset_split=result["split"]
        )
        for name, value in result["metrics"].items()
    ]
    front = ModelCardData(
        library_name="transformers", tags=["synthesizer"], pipeline_tag=task, license="unknown",
        model_name=f"{recipe.name}-{recipe.synthesis}", eval_results=results,
    )  # fmt: skip
    return "\n".join(
        [
            "---",
            str(front),
            "---",
            f"# {plain(recipe.name)} with {plain(recipe.synthesis)} attention",
            "",
            f"Trained for {recipe.task} by `synthesizer`; seed {recipe.seed}, "
            f"recipe {result['recipe_hash']}, {result['steps']} steps.",
            "Load it after `import synthesizer_attention.models`, with the Auto class of its task.",
            "",
            f"| metric ({result['split']}) | value | signature |",
            "|---|---|---|",
            *metrics,
            "",
            "| parameters | |",
            "|---|---|",
            *parts,
            "",
            fenced(dump(recipe).rstrip(), "toml"),
            "",
        ]
    )
