"""The page of an audit: the answer, the curve, the heads, what is saved, and where outputs moved.

Read from audit.json and tables.safetensors alone, so that it can be drawn again at any time.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm, PowerNorm
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from synthesizer_attention.audit.cost import change, sentence, why_ended
from synthesizer_attention.audit.examples import METRICS
from synthesizer_attention.audit.record import (
    PAGE,
    RECORD,
    TABLES,
    Point,
    check_tables,
    model_name,
    read_audit,
)
from synthesizer_attention.errors import UserError
from synthesizer_attention.report.page import (
    Block,
    Figures,
    Plot,
    Points,
    Section,
    Table,
    Text,
    page,
)
from synthesizer_attention.report.style import (
    BLUE,
    MUTED,
    RED,
    RIGHT,
    SHADE,
    SIGNED,
    UP,
    WIDTH,
    End,
    drawing,
    name_at_right,
    to_svg,
)
from synthesizer_attention.run.files import check_regular_file, make_folder, write_text

Record = dict[str, Any]
_INCOMPLETE = (
    ArithmeticError, AttributeError, LookupError, SafetensorError, TypeError, ValueError,
)  # fmt: skip
_NEAR = 8  # distances shown on each side
_KINDS = {
    "positional": "attend by distance",
    "sink": "attend mostly to the first or last token",
    "uniform": "attend nearly alike to all tokens",
    "content": "depend on the tokens: averages explain less than half",
}


def audit_page(record: Record, tables: Path) -> str:
    """The whole page."""
    sections = [
        Section("How much the metric loses", [Figures([_curve(record)]), _curve_table(record)]),
        Section("Which heads", [*_heads_words(record), Figures([_heat(record)])]),
    ]
    if record["table"] == "relative":
        check_regular_file(tables)
        plots = _maps(record, load_file(tables))
        sections.append(Section("Where heads look on average", [Figures(plots)]))
    if record.get("speed"):
        sections.append(Section("Measured speed", [_speed(record)]))
    elif record.get("untimed"):
        sections.append(Section("Measured speed", [Text(f"None: {record['untimed']}.")]))
    if record["most_moved"]:
        sections.append(Section("Examples that moved farthest", _moved(record)))
    sections.append(Section("How it was measured", _method(record)))
    title = f"Which heads of {model_name(record)} need dot products?"
    return page(title, sections, _lead(record))


def draw_again(folder: Path, out: Path | None) -> Path:
    """Draw the page of a finished audit from its record."""
    record = read_audit(folder)
    check_tables(folder, record)
    try:
        html = audit_page(record, folder / TABLES)
    except FileNotFoundError:
        raise UserError(
            f"{folder} holds no {TABLES}, which its page shows; restore it from a copy"
        ) from None
    except _INCOMPLETE as error:
        raise UserError(
            f"{folder / RECORD} is not the whole record of an audit ({error!r:.200}); run "
            "synthesizer audit again"
        ) from None
    home = out or folder
    make_folder(home)
    write_text(home / PAGE, html)
    return home / PAGE


def _lead(record: Record) -> list[Block]:
    reads = record.get("reads", "texts")
    cut = f" {record['num_cut']} {reads} were cut at {record['max_len']} tokens."
    left = ", ".join(f"{name} ({spec})" for name, spec in record.get("left", {}).items())
    left = f" Layers that are no dot product were left as they are: {left}." if left else ""
    points = [Point(**point) for point in record["curve"]]
    best, margin, metric = Point(**record["answer"]), record["margin"], record["metric"]
    before = sum(len(layer.get("tables", [])) for layer in record["layers"])
    answer = sentence(best, len(record["order"]), margin, metric, before)
    ended = why_ended(points, best, margin, metric)
    scope = (
        f"{record['architecture']}, {len(record['order'])} heads of dot products in "
        f"{len(record['layers'])} layers of self-attention; {record['metric']} "
        f"{record['value']:.4g} on {record['num_judge']} examples of {record['data']}. A replaced "
        "head attends by a table of its average attention, and nothing was retrained."
        f"{cut if record['num_cut'] else ''}{left}"
    )
    said = [Text(answer, "answer"), *([Text(ended)] if ended else [])]
    return [*said, Text(scope, "note")]


def _curve(record: Record) -> Plot:
    points, control = record["curve"], record["control"]
    with drawing(3.2) as (figure, axes):
        counts = [point["replaced"] for point in points]
        costs = [point["cost"] for point in points]
        low, high = ([point[end] for point in points] for end in ("low", "high"))
        axes.axvline(record["answer"]["replaced"], color=SHADE, linewidth=6, zorder=0)
        axes.fill_between(counts, low, high, color=BLUE, alpha=0.18, linewidth=0)
        axes.plot(counts, costs, "o-", color=BLUE, markersize=4)
        below = [point["cost"] - point["low"] for point in control]
        above = [point["high"] - point["cost"] for point in control]
        axes.errorbar(
            [p["replaced"] for p in control], [p["cost"] for p in control], yerr=[below, above],
            fmt="s", color=RED, markersize=4, linewidth=1.2,
        )  # fmt: skip
        ends = [End(counts[-1], costs[-1], "least cost first", {"color": BLUE, "linestyle": "-"})]
        for point in control[-1:]:
            look = {"color": RED, "linestyle": "-"}
            ends.append(End(point["replaced"], point["cost"], "random order", look))
        for name, height, dashes in (
            ("allowed", record["margin"], (0, (4, 2))),
            ("original", 0.0, "-"),
        ):
            flat: dict[str, Any] = {"color": MUTED, "linestyle": dashes}
            axes.axhline(height, linewidth=1, **flat)
            ends.append(End(counts[-1], height, name, flat))
        axes.margins(x=0.02)
        axes.yaxis.set_major_formatter(SIGNED)
        axes.set_xlabel("heads replaced by tables")
        axes.set_ylabel(f"{METRICS[record['metric']].unit} (worse {UP})")
        figure.draw_without_rendering()
        name_at_right(axes, ends)
        svg = to_svg(figure, "Loss of the metric by the number of heads replaced, with its band")
    return Plot(
        svg,
        "Loss of the metric with heads replaced. Bands and bars: nine of ten resamples of the "
        "examples. Grey: the answer.",
    )


def _curve_table(record: Record) -> Table:
    first = record["sizes"][0]
    rows = [
        [
            f"{point['replaced']}",
            f"{point['value']:.4g}",
            *(change(Point(**point)) if point["replaced"] else ("", "")),
            f"{size['parameters'] / 1e6:.3g} M",
            f"{size['flops'] / max(1, first['flops']):.0%}",
            f"{size['cache_bytes'] / 1024:.3g} KiB" if first["cache_bytes"] else "none",
        ]
        for point, size in zip(record["curve"], record["sizes"], strict=True)
    ]
    head = ["heads replaced", record["metric"], "change", "interval", "attention parameters"]
    head += [f"attention FLOPs at {record['max_len']} tokens", "cache per token"]
    return Table(head, rows, caption="Cache in float32; FLOPs as a share of the original's.")


def _kinds(record: Record) -> dict[str, str]:
    """What the letters of the map stand for: the kinds that heads have, and how many have each."""
    counts = Counter(head["kind"] for head in record["heads"])
    found = {
        kind[0]: f"{kind}: {counts[kind]} head{'s' * (counts[kind] > 1)}, which {does}."
        for kind, does in _KINDS.items()
        if counts[kind]
    }
    if before := sum(len(layer.get("tables", [])) for layer in record["layers"]):
        found["t"] = f"table: {before} head{'s' * (before > 1)}, replaced before and left alone."
    return found


def _heads_words(record: Record) -> list[Block]:
    return [Points([f"{letter}, {words}" for letter, words in _kinds(record).items()])]


def _heat(record: Record) -> Plot:
    layers, heads = len(record["layers"]), max(layer["num_heads"] for layer in record["layers"])
    grid = np.full((layers, heads), np.nan)
    for head in record["heads"]:
        grid[head["layer"], head["head"]] = head["moved"]
    top = max(float(np.nanmax(grid)), 1e-8)  # a loss may fall with every head
    floor = top / 1e4
    with drawing(1.5 + 0.28 * layers, max(WIDTH, 0.4 * heads + 2)) as (figure, axes):
        axes.grid(visible=False)
        drawn = axes.imshow(
            np.clip(grid, floor, None), cmap="viridis", norm=LogNorm(floor, top), aspect="auto"
        )
        for head in record["heads"]:
            bright = np.log(max(head["moved"], floor) / floor) > 0.6 * np.log(top / floor)
            axes.text(
                head["head"], head["layer"], head["kind"][0], ha="center", va="center",
                fontsize=8, color="black" if bright else "white",
            )  # fmt: skip
        for place, layer in enumerate(record["layers"]):
            for head in layer.get("tables", []):
                axes.text(head, place, "t", ha="center", va="center", fontsize=8, color=MUTED)
        axes.set_xticks(range(heads), [str(head + 1) for head in range(heads)])
        axes.set_yticks(range(layers), _layer_names(record))
        axes.tick_params(length=0)
        axes.set_xlabel("head")
        letters = [f"{key}  {words.partition(':')[0]}" for key, words in _kinds(record).items()]
        axes.text(1.03, 1, "\n".join(letters), transform=axes.transAxes, va="top", fontsize=9)
        bar = figure.colorbar(drawn, ax=axes, location="top", aspect=40, pad=0.03)
        bar.set_label(f"how far outputs move (needed more {RIGHT})")
        svg = to_svg(figure, "Cost of replacing each head alone, by layer and head")
    return Plot(svg, "Each head replaced alone; the letter is its kind, as listed above.")


def _layer_names(record: Record) -> list[str]:
    """Counted from 1, in encoder and decoder apart."""
    causal = [bool(layer["causal"]) for layer in record["layers"]]
    if len(set(causal)) == 1:
        return [f"layer {number}" for number in range(1, len(causal) + 1)]
    return [
        f"{'decoder' if is_causal else 'encoder'} layer {causal[: place + 1].count(is_causal)}"
        for place, is_causal in enumerate(causal)
    ]


def _maps(record: Record, arrays: dict[str, NDArray[np.float32]]) -> list[Plot]:
    plots = []
    titles = _layer_names(record)
    for place, layer in enumerate(record["layers"]):
        offsets, sinks = np.exp(arrays[f"{place}.offsets"]), np.exp(arrays[f"{place}.sinks"])
        middle = offsets.shape[1] // 2
        far = min(_NEAR, middle)
        ahead = 0 if layer["causal"] else far
        near = offsets[:, middle - far : middle + ahead + 1]
        image = np.column_stack([sinks[:, 0], near] + ([] if layer["causal"] else [sinks[:, 1]]))
        names = ["first", *(f"{d:+d}" if d else "0" for d in range(-far, ahead + 1))]
        names += [] if layer["causal"] else ["last"]
        with drawing(0.9 + 0.2 * len(image)) as (figure, axes):
            axes.grid(visible=False)
            axes.imshow(image, cmap="viridis", norm=PowerNorm(0.5, 0, 1), aspect="auto")
            axes.set_xticks(range(len(names)), names, fontsize=7, rotation=90)
            axes.set_yticks(range(len(image)), [str(head + 1) for head in range(len(image))])
            axes.tick_params(length=0, labelsize=7)
            svg = to_svg(figure, f"Average attention of {titles[place]} by distance and sink")
        caption = "Heads downwards; average weight of a key by its distance."
        plots.append(Plot(svg, caption, titles[place]))
    return plots


def _speed(record: Record) -> Table:
    counts = sorted({row["replaced"] for row in record["speed"]})
    lengths = sorted({row["length"] for row in record["speed"]})
    found = {(row["length"], row["replaced"]): row["ms"] for row in record["speed"]}
    rows = [
        [
            f"{count}" if count else "none: the original",
            *(
                f"{found[n, count]:.1f} ms"
                + (f"\n{found[n, 0] / found[n, count]:.2f} x" if count else "")
                for n in lengths
            ),
        ]
        for count in counts
    ]
    return Table(
        ["heads replaced", *(f"{length} tokens" for length in lengths)], rows,
        caption=f"A forward pass of {record['speed'][0]['tokens']:,} tokens on one CPU thread, "
        "unpadded, best of three rounds in turn, and how many times as fast as the original.",
    )  # fmt: skip


def _moved(record: Record) -> list[Block]:
    pictures = [
        Plot("", example["texts"][0], image=example["image"])
        for example in record["most_moved"]
        if "image" in example
    ]
    rows = [
        [
            "\n".join(example["texts"]),
            "" if example["target"] is None else str(example["target"]),
            *(
                f"{value:.3g}" if isinstance(value, float) else str(value)
                for value in (example["before"], example["after"])
            ),
        ]
        for example in record["most_moved"]
    ]
    shown = record.get("reads", "texts").removesuffix("s")
    head = [shown, "target", "original", "converted"]
    return [Figures(pictures), Table(head, rows, of_words=True)]


def _method(record: Record) -> list[Block]:
    seed = record.get("seed", 0)
    rows = {part: record.get(f"num_{part}_rows", 0) for part in ("fit", "judge")}
    fit, judge = (  # records of older versions took the first
        f", drawn at random from {n:,} (seed {seed})" if n > record[f"num_{part}"] else ""
        for part, n in rows.items()
    )
    how = (
        f"Attention was averaged over {record['num_fit']} examples ({record['fit']}{fit}); "
        f"heads were ranked on {record['num_rank']} of them by how far outputs move, measured "
        f"again as more were replaced; the curve is measured on {record['num_judge']} other "
        f"examples of {record['data']}{judge}. Points are tried from the left, and the first "
        "whose interval reaches the allowed loss ends it, so that the claim errs in one of "
        "twenty audits."
    )
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return [Text(how), Text(record["command"], "note"), Text(versions, "note")]
