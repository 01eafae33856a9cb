"""A page in which trained models run: weights in float16, engine.js and play.js, no network.

    play([run, ...], out)           the page of these runs
    live(summaries, out, leave)     that of a report's runs

Runs with one tokenizer and kind of model share a text box. A model is described by its modules, so
that what engine.js does not compute is refused here, by name.
"""

import json
import zlib
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import Template
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from synthesizer_attention.attention.baselines import Convolution, Linformer, spec_of_mixer
from synthesizer_attention.attention.layer import SyntheticAttention
from synthesizer_attention.attention.registry import spec_of
from synthesizer_attention.attention.synthesis import (
    Grouped,
    Mixture,
    Rotary,
    Synthesis,
)
from synthesizer_attention.data.tokenizer import ends, fingerprint, load_tokenizer
from synthesizer_attention.errors import UserError, printable
from synthesizer_attention.metrics.scores import shown
from synthesizer_attention.models.backbone import SynthesizerPreTrainedModel
from synthesizer_attention.models.layers import Layer, Stack
from synthesizer_attention.models.universal import UniversalStack
from synthesizer_attention.report.page import policy
from synthesizer_attention.report.plots import shown_lines
from synthesizer_attention.report.style import css_variables
from synthesizer_attention.report.summary import Summary
from synthesizer_attention.run.files import make_folder, write_text
from synthesizer_attention.run.recipe import Recipe, differences
from synthesizer_attention.run.recipe_keys import TASKS
from synthesizer_attention.run.records import named
from synthesizer_attention.run.run import Run
from synthesizer_attention.spec import parse_positions, parse_spec
from synthesizer_attention.tasks import Task, build_task
from synthesizer_attention.training.build import unique_weights
from synthesizer_attention.training.evaluate import on_device
from synthesizer_attention.training.finish import best_device, load_model
from synthesizer_attention.training.maps import look_at, mask_of

HERE = Path(__file__).parent
MEAN_TOKENS = 2**15  # of train text, at least, that the mean of a head is taken over
EXAMPLES = 3  # texts of the test split that the page offers
VARIED = ("synthesis:", "decoder_synthesis:")  # what runs side by side may differ in, unsaid

Described = dict[str, Any]


def play(paths: Sequence[Path], out: Path, leave: Callable[[str], None] | None = None) -> Path:
    """Write one page for some finished runs; `leave` hears of those that it cannot run."""
    groups: dict[str, Described] = {}
    first: dict[str, Recipe] = {}
    for path in paths:
        try:
            _add(path, groups, first)
        except UserError as error:
            if leave is None:
                raise
            leave(f"not on the live page: {error}")
    if not groups:
        raise UserError("the page would have no model: none of the runs can be played")
    write_text(out, page(list(groups.values())))
    return out


def live(summaries: Sequence[Summary], out: Path, leave: Callable[[str], None]) -> Path:
    """The page of a report: of each study the rows whose attention it draws, by their first run."""
    lines = [line for summary in summaries for line in shown_lines(summary)]
    paths = [line.row.finished[0].path for line in lines]
    if not any(Run(path).model.is_dir() for path in paths):
        home = summaries[0].study.path
        raise UserError(
            f"--live needs trained models and {named(home)} has none, as packed records have; name "
            "a study directory as compare left it"
        )
    make_folder(out.parent)
    return play(paths, out, leave)


def _add(path: Path, groups: dict[str, Described], first: dict[str, Recipe]) -> None:
    """Add a run to those with its tokenizer and kind of model; the first of them is its measure."""
    run = Run(path)
    recipe = run.recipe()
    if recipe.imports:
        own = ", ".join(recipe.imports)
        raise UserError(f"play does not run functions of your own ({own}); leave {path} out")
    model, tokenizer = load_model(run), load_tokenizer(run.model)
    config = model.config
    prefix = recipe.data.prefix if recipe.task != "text_to_text" else ""
    key = f"{config.kind} {recipe.task} {prefix} {fingerprint(tokenizer)} {config.id2label}"
    entry = describe(model, str(path), recipe.evaluate.max_new_tokens)
    read = describe_tokenizer(tokenizer, str(run.model))
    decoder = f" (decoder: {recipe.decoder_synthesis})" if recipe.decoder_synthesis else ""
    task = build_task(recipe, tokenizer_dir=run.model)
    means, count = mean_weights(model.to(best_device()), task)
    result = run.result()
    name = result["main_metric"]
    tensors = pack(tensors_of(model) | means, str(path))
    if key not in groups:
        first[key] = recipe
        groups[key] = {
            "title": f"{recipe.name}: {recipe.task.replace('_', ' ')}",
            "kind": config.kind,
            "prefix": prefix,
            "continues": TASKS[recipe.task].shape == "stream",
            "tokenizer": read,
            "labels": list((config.id2label or {}).values()),
            "examples": examples_of(task, prefix),
            "models": [],
        }
    groups[key]["models"].append(entry | {
        "label": recipe.synthesis + decoder,
        "run": str(path),
        "score": f"test {shown(name).removesuffix(', %')} {result['metrics'][name]:.2f}",
        "differs": [d for d in differences(first[key], recipe) if not d.startswith(VARIED)],
        "mean_tokens": count,
        "tensors": tensors,
    })  # fmt: skip


def page(groups: list[Described]) -> str:
    """The whole page, under the content-security policy of the report."""
    css, html, engine, shown = (
        (HERE / name).read_text(encoding="utf-8")
        for name in ("play.css", "play.html", "engine.js", "play.js")
    )
    style, script = f"\n{css_variables()}\n{css}", f"{engine}\n{shown}"
    data = json.dumps(groups, ensure_ascii=True).replace("<", "\\u003c")
    return Template(html).render(
        policy=policy(style, script), style=style, models=data, script=script
    )


def describe(
    model: SynthesizerPreTrainedModel, origin: str, max_new_tokens: int | None = None
) -> Described:
    """What engine.js must know of a model beside its tensors."""
    config = model.config
    if isinstance(config.window, str):
        raise UserError(
            f"play knows windows of a number of tokens, not {config.window!r}; leave {origin} out"
        )
    if config.imports:  # of an installed package: a recipe names none
        named = ", ".join(config.imports)
        raise UserError(f"play does not run functions of your own ({named}); leave {origin} out")
    longest = config.decoder_max_len - 1  # the start is a token, too
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "config": {
            "kind": config.kind,
            "num_heads": config.num_heads,
            "max_len": config.max_len,
            "norm": config.norm,
            "eps": 1e-5 if config.norm == "layer" else torch.finfo(torch.float32).eps,
            "pre": config.norm_position == "pre",
            "activation": config.activation,
            "pooling": config.pooling,
            "start": config.decoder_start_token_id,
            "end": config.eos_token_id,
            "answer_len": min(max_new_tokens or longest, longest),
            "halt_at": None if config.fixed_depth else 1 - config.halting_epsilon,
            "layers": {
                name: [
                    _layer(stack.layers[step % len(stack.layers)], name, step, stack)
                    for step in range(stack.num_steps)
                ]
                for name, stack in stacks_of(model).items()
            },
        },
    }


def stacks_of(model: SynthesizerPreTrainedModel) -> dict[str, Stack | UniversalStack]:
    """The stacks of a model by name."""
    kind = model.config.kind
    names = ("encoder", "decoder") if kind == "encoder_decoder" else (kind,)
    return {name: getattr(model.base_model, name) for name in names}


def _layer(layer: Layer, name: str, step: int, stack: Stack | UniversalStack) -> Described:
    """A layer, or a step of a universal one: where its tensors are, and its token mixers."""
    universal = isinstance(stack, UniversalStack)
    at = f"model.{name}.stack.layers.0" if universal else f"model.{name}.layers.{step}"
    title = f"{name} {'step' if universal else 'layer'} {step + 1}"
    place = {"at": f"{at}.attention", "key": f"{name}.{step}", "stack": name, "title": title}
    mixer = layer.attention
    described: Described = {"at": at, "attention": None, "cross": None}
    if isinstance(mixer, SyntheticAttention):
        described["attention"] = {**place, **_attention(mixer, place["at"])}
    elif isinstance(mixer, Convolution):
        kind = {"kind": "convolution", "before": mixer.before, "label": mixer.name}
        described["attention"] = {**place, **kind}
    elif isinstance(mixer, Linformer):
        described["attention"] = {**place, "kind": "linformer", "label": spec_of_mixer(mixer)}
    if layer.cross is not None:
        part = {"name": "dot", "at": f"{at}.cross.synthesis"}
        group = {"heads": layer.cross.size.num_heads, "biased": False, "mix": None, "parts": [part]}
        cross = {"kind": "attention", "label": "cross-attention: dot", "causal": False}
        own = {"at": f"{at}.cross", "key": f"{place['key']}.cross", "groups": [group]}
        described["cross"] = {**place, **cross, **own}
    return described


def _attention(mixer: SyntheticAttention, at: str) -> Described:
    """A layer's groups of heads, and the parts of their mixtures, each by name and place."""
    synthesis, place = mixer.synthesis, f"{at}.synthesis"
    members: list[tuple[str, Synthesis, int]] = [(place, synthesis, mixer.size.num_heads)]
    if isinstance(synthesis, Grouped):
        each = zip(synthesis.groups, synthesis.heads, strict=True)
        members = [(f"{place}.groups.{n}", group, heads) for n, (group, heads) in enumerate(each)]
    groups, rotary = [], None
    for where, group, heads in members:
        mixed = isinstance(group, Mixture)
        parts = [(where, group)]
        if isinstance(group, Mixture):
            parts = [(f"{where}.parts.{n}", part) for n, part in enumerate(group.parts)]
        named = []
        for there, part in parts:
            name = parse_spec(spec_of(part))[0].name
            turned: Rotary | None = getattr(part, "rotary", None)
            if turned is not None:
                rotary = {"base": turned.options.base, "width": turned.width}
            named.append({"name": name, "at": there})
        mix = f"{where}.mix" if mixed else None
        groups.append({"heads": heads, "biased": group.biased, "mix": mix, "parts": named})
    return {
        "kind": "attention",
        "label": spec_of(synthesis),
        "groups": groups,
        "causal": mixer.causal,
        "window": mixer.window,
        "rotary": rotary,
    }


def tensors_of(model: SynthesizerPreTrainedModel) -> dict[str, Tensor]:
    """The tensors that engine.js reads, by their names in the state dict, and positions as tables.

    Positions are added to embeddings (N, D), or to logits by distance (H, 2N - 1). What no causal
    query sees of a table is zero, so that it takes no room.
    """
    tensors = {
        name: tensor
        for name, tensor in unique_weights(model).items()
        if not {"positions", "relative"} & set(name.split("."))
    }
    for name, mixer in model.named_modules():
        if isinstance(mixer, SyntheticAttention) and mixer.causal:
            for part in (part for part in tensors if part.startswith(f"{name}.synthesis.")):
                if part.endswith(".table"):
                    tensors[part] = tensors[part].tril()
    kinds = parse_positions(model.config.positions)
    for name, whole in stacks_of(model).items():
        stack = whole.stack if isinstance(whole, UniversalStack) else whole
        size, device = stack.shape.max_len, model.device
        places, zero = torch.arange(size, device=device), torch.zeros(1, device=device)
        with torch.no_grad():
            if kinds.added != "none":
                nothing = torch.zeros(size, model.config.d_model, device=device)
                tensors[f"added.{name}"] = stack.positions(nothing, places)
            far = torch.arange(1 - size, size, device=device)
            biases = []
            if stack.relative is not None:
                biases.append(stack.relative(zero.long(), far)[0, :, 0])
            if stack.alibi is not None:
                biases.append(stack.alibi(zero.long(), far, torch.float32)[0, :, 0])
            if biases:
                tensors[f"bias.{name}"] = torch.stack(biases).sum(0)
    return tensors


def mean_weights(model: SynthesizerPreTrainedModel, task: Task) -> tuple[dict[str, Tensor], int]:
    """The mean attention (H, N, N) of every layer whose logits read tokens, and of how many."""
    stacks, sums, count = stacks_of(model), dict[str, Tensor](), 0
    for batch in task.train_batches():
        inputs = on_device(batch, model)
        for name, layers in look_at(model, inputs).items():
            real = mask_of(model, name, inputs).float()
            for index, weights in layers:
                layers_there = stacks[name].layers
                mixer = layers_there[index % len(layers_there)].attention
                assert isinstance(mixer, SyntheticAttention)
                if not mixer.synthesis.depends_on_input:
                    continue  # its map is the same for every text
                at, size = f"mean.{name}.{index}", weights.shape[-1]
                longest = stacks[name].shape.max_len
                total = sums.setdefault(at, torch.zeros(weights.shape[1], longest, longest))
                total[:, :size, :size] += torch.einsum("bhts,bt->hts", weights, real).cpu()
        count += batch.num_tokens
        if count >= MEAN_TOKENS:
            break
    return {
        at: total / total.sum(-1, keepdim=True).clamp(min=1e-9) for at, total in sums.items()
    }, count


def examples_of(task: Task, prefix: str) -> list[str]:
    """The first texts of the test split; of a stream the first half of a window."""
    batch = next(iter(task.batches("test")))
    rows = batch.inputs["input_ids"][:EXAMPLES].tolist()
    if task.kind == "decoder":
        rows = [row[: max(2, len(row) // 2)] for row in rows]
    texts = task.tokenizer.batch_decode(rows, skip_special_tokens=True)
    return [printable(text.removeprefix(prefix), lines=True) for text in texts]


def describe_tokenizer(tokenizer: PreTrainedTokenizerFast, origin: str) -> Described:
    """What engine.js tokenizes by: bytes, byte-level BPE, or words between spaces."""
    shape: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    model, before = shape["model"], shape["pre_tokenizer"] or {}
    words = model["type"] == "WordLevel" and before.get("type") == "WhitespaceSplit"
    pieces = model["type"] == "BPE" and before.get("type") == "ByteLevel"
    odd = [key for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix",
                           "ignore_merges") if model.get(key)]  # fmt: skip
    if shape["normalizer"] or not (words or pieces) or odd or before.get("add_prefix_space"):
        kind = f"{model['type']} after {before.get('type') or 'nothing'}"
        raise UserError(
            f"play does not run the tokenizer of {origin} ({kind}); expected bytes, words between "
            "spaces or byte-level BPE, without normalizer"
        )
    added = {
        token["content"]: token["id"]
        for token in shape["added_tokens"]
        if not (token["special"] and tokenizer.split_special_tokens)
    }
    opening, closing = ends(tokenizer)
    return {
        "kind": "word" if words else "bytes",
        "vocab": model["vocab"],
        "merges": [
            pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges", [])
        ],
        "marks": added,
        "unknown": tokenizer.unk_token_id,
        "regex": bool(before.get("use_regex")),
        "opening": opening,
        "closing": closing,
        "special": sorted(set(tokenizer.all_special_ids)),
    }


def pack(tensors: dict[str, Tensor], origin: str, dtype: str = "float16") -> Described:
    """Tensors as engine.js reads them: shapes, and all numbers deflated, in base64.

    The first bytes of all numbers stand first: those with signs and exponents repeat.
    """
    kept = []
    for name, tensor in tensors.items():
        with np.errstate(over="ignore"):
            values: NDArray[Any] = tensor.detach().float().cpu().numpy().astype(dtype)
        if not np.isfinite(values).all():
            raise UserError(f"{origin}: {name} has values that float16 does not hold; leave it out")
        kept.append(values.ravel())
    numbers = np.concatenate(kept)
    planes = numbers.view(np.uint8).reshape(len(numbers), -1).T
    data = b64encode(zlib.compress(planes.tobytes(), 9)).decode()
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    return {"shapes": shapes, "dtype": dtype, "data": data}
