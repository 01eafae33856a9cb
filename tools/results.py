"""Write docs/results.md, its plots and README.md's table from results/: python tools/results.py."""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from synthesizer_attention.errors import UserError, plain
from synthesizer_attention.report import ladder as rungs
from synthesizer_attention.report.notes import unplanned_looks
from synthesizer_attention.report.page import Table
from synthesizer_attention.report.plots import forest
from synthesizer_attention.report.style import css_variables
from synthesizer_attention.report.summary import MISSING, WITHOUT_A_NETWORK, Summary, span
from synthesizer_attention.report.tables import cells, metric_tables, paper_tables
from synthesizer_attention.report.write import summarize_all, value_plot
from synthesizer_attention.run.records import PACKED

sys.path.insert(0, str(Path(__file__).parent))
from claims import FIVE, HEAD, MIXED, TABLE_2, judge_claims

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
IMAGES = ROOT / "docs" / "images"
BEGIN, END = "<!-- table: python tools/results.py -->", "<!-- end of table -->"
WHOLE = ("dot", "fixed_random", *TABLE_2, *MIXED, "none", "lightconv", "dynamicconv")
PLANNED = {  # record of results/: title, and the rows that the paper's claim is about
    "translation": ("Translation: Multi30k, English to German", WHOLE),
    "language-modeling": ("Language modelling: WikiText-2", WHOLE),
    "encoding-agnews": (
        "Encoding: AG News (a third of it)",
        ("dot", "none", "linformer", "random", "factorized_random", "factorized_random+dot",
         "dense", "random+dot"),
    ),
    "encoding-imdb": (
        "Encoding: IMDb",
        ("dot", "none", "linformer", "random", "factorized_random", "factorized_random+dot",
         "dense", "random+dot"),
    ),
    "pairs": ("Pairs of sentences: paraphrases of Tatoeba", (*FIVE, "none")),
    "dialogue": ("Dialogue: DailyDialog", FIVE),
    "dialogue-personachat": ("Dialogue: PersonaChat (a small part of it)", FIVE),
    "summarization": ("Summarization", FIVE),
    "transfer": ("Transfer: span corruption, then GLUE and SuperGLUE tasks", FIVE),
    "heads": ("Heads: python-docs with 1 to 16 heads", ("dot", "random", "dense")),
    "ladder-translation": ("Ladder: translation", ()),
    "ladder-language-modeling": ("Ladder: language modelling", ()),
    "grammar-ende": ("Built in: translation by a grammar", ()),
    "grammar-ende-large": ("Built in: the same grammar, a larger model", ()),
    "grammar-ende-sinusoidal": (
        "Built in: the same, all systems, before the opponent was searched (an older draw)", ()
    ),
    "python-docs": ("Built in: bytes of Python's documentation", ()),
    "python-docs-sinusoidal": (
        "Built in: the same, all systems, before the opponent was searched (an older split)", ()
    ),
    "universal": ("Built in: a Universal Transformer beside dot with layers of its own", ()),
    "listops-short": ("Built in: ListOps, short", ()),
    "listops-short-sinusoidal": (
        "Built in: the same, all systems, before the opponent was searched (an older draw)", ()
    ),
    "recall": ("Built in: recall", ()),
    "shift": ("Built in: shift", ()),
    "distance-copying": ("Probe: copying by a distance that the input names", ()),
    "selective-copying": ("Probe: copying letters and leaving out noise", ()),
    "noisy-recall": ("Probe: recall among noise", ()),
    "multi-query-recall": ("Probe: recall of keys and values in two tokens", ()),
}  # fmt: skip
WHY_NOT = {
    "transfer": "No budget was found in which dot is above `none` on pairs of sentences, which the "
    "paper's claim is about: after the span corruption that two cores can afford dot learns STS-B "
    "less well than from nothing, and in a mixture of ten tasks it leads `none` on SST-2 "
    "alone. What was tried is in the [log](log.md). Pairs that are told apart without pretraining "
    "have a study of their own above.",
}
SEVERAL = ("dialogue", "summarization", "text_to_text")  # tasks that the paper scores in many ways
PROBES = ("distance-copying", "selective-copying", "noisy-recall", "multi-query-recall")
ELSEWHERE = {"scale", "table-rate"}  # told in other documents
SHOWN = ("verdict", "parameters", "FLOPs per token", "source gap", "remarks")
README_ROWS = ("random", "random+dot", "dense", "none")
README_STUDIES = {  # one of each kind of task
    "translation": "translation, Multi30k",
    "language-modeling": "language model, WikiText-2",
    "encoding-agnews": "topics, AG News",
    "summarization": "summaries, SAMSum",
    "pairs": "paraphrases, Tatoeba",
    "recall": "recall, a probe",
}
CONVOLUTION = 0.8  # share of a table's variance that the offset explains


def summaries(results: Path = RESULTS) -> dict[str, Summary]:
    """Every study by its name, those of the plan first; loose runs of one recipe are one."""
    names = sorted(path.stem for path in results.glob(f"*{PACKED}"))
    ordered = [*(n for n in PLANNED if n in names), *(n for n in names if n not in PLANNED)]
    found = {}
    for name in ordered:
        if name in ELSEWHERE:
            continue
        try:
            (summary,) = summarize_all([results / f"{name}{PACKED}"])
        except (UserError, ValueError):  # no runs yet, or more than one table
            continue
        if summary.finished:
            found[name] = summary
    return found


def page(found: dict[str, Summary], results: Path = RESULTS) -> str:
    """docs/results.md."""
    parts = [
        "# Results",
        "Made by `python tools/results.py` from the records in [results](../results/README.md); "
        "nothing here is typed. Each table: mean \N{PLUS-MINUS SIGN} standard deviation over "
        "seeds, the difference from the named dot product with its interval, and the verdict that "
        "follows from it ([docs/compare.md](compare.md)). Numbers of the paper stand apart, at "
        "their own scale: compare the order of rows, not values.",
        "## The paper's claims",
        Table(HEAD, judge_claims(found, results / "bench")).markdown(),
        "Each claim has one word, from the record nearest to the paper's task and against the dot "
        "product that a search on validation chose; words of single rows are those of the tables "
        "below. All claims are one family: the chance of any wrong word is 5% (Holm over the "
        "claims), so rows may be decided where their claim is not. A claim holds if every row "
        "shows it, and does not hold if one row shows the contrary. Speeds have no interval.",
        "## How much dot product do mixtures keep?",
        *mixtures(found),
        "## What do Random's heads look like?",
        *random_heads(found),
    ]  # fmt: skip
    for name, (title, rows) in PLANNED.items():
        if name in found:
            parts += section(name, title, found[name], rows)
        elif rows or name.startswith("ladder"):
            why = f" {WHY_NOT[name]}" if name in WHY_NOT else ""
            parts += [f"## {title}", f"Not run{': ' + ', '.join(rows) if rows else ''}.{why}"]
    for name, summary in found.items():
        if name not in PLANNED:
            parts += section(name, f"Other records: {name}", summary, ())
    return "\n\n".join(parts) + "\n"


def section(name: str, title: str, summary: Summary, rows: Sequence[str]) -> list[str]:
    """The table of one study, the paper's beside it, and where its plots are."""
    parts = [f"## {title}", f"**{plain(summary.answer)}**", plain(summary.scope)]
    parts += [results_table(summary), *map(plain, unplanned_looks(summary))]
    given = [
        f"{plain(WITHOUT_A_NETWORK[name][1])} has {value:.2f}"
        for name, value in summary.floors.items()
    ]
    if given:
        parts.append(f"Without a network: {'; '.join(given)}.")
    missing = [spec for spec in rows if not _is_run(summary, spec)]
    if missing:
        parts.append(f"Not run: {', '.join(missing)}.")
    metrics = metric_tables(summary) if summary.study.recipe.get("task") in SEVERAL else None
    if metrics:
        parts += ["All metrics:", Table(*metrics[0]).markdown()]
        parts += [f"Differences from {plain(summary.dot_name)}, each metric judged by itself:"]
        parts += [Table(*metrics[1]).markdown()]
    ladder = rungs.read_ladder(summary.study)
    if ladder:
        parts += [block.markdown() for block in rungs.blocks(ladder, plots=False)]
    parts += [f"![{plain(title)}](images/{file})" for file in pictures(name, summary)]
    parts += published(summary)
    return [*parts, f"Record: [results/{name}.md](../results/{name}.md)."]


def _is_run(summary: Summary, spec: str) -> bool:
    return any(row.spec == spec and row.finished for row in summary.study.rows)


def results_table(summary: Summary) -> str:
    """Ours: mean, sd, seeds, difference, verdict."""
    head, rows = cells(summary)
    names = (f"difference from {summary.dot_name}", *SHOWN)
    kept = [0, 1, *(place for place, name in enumerate(head) if name in names)]
    seeds = [str(len(line.scores)) for line in summary.lines]
    shown = [
        [row[0], row[1], count, *(row[place] for place in kept[2:])]
        for row, count in zip(rows, seeds, strict=True)
    ]
    head = [head[0], head[1], "seeds", *(head[place] for place in kept[2:])]
    return Table(head, shown).markdown()


def published(summary: Summary) -> Iterator[str]:
    """The paper's figures of the rows that we have, labelled."""
    specs = [row.spec for row in summary.study.rows]
    for paper in paper_tables(summary.study.recipe.get("paper"), specs):
        rows = [row for row in paper.rows if row[1] != MISSING]
        if rows:
            yield f"PUBLISHED, not ours: {plain(paper.title)}. Source: {plain(paper.source)}."
            yield Table(paper.head, rows).markdown()


def pictures(name: str, summary: Summary) -> list[str]:
    """The files that `draw` makes of a study."""
    ladder = rungs.read_ladder(summary.study)
    if ladder and ladder.laws:
        rivals = [place for place, trend in enumerate(ladder.laws.trends) if trend]
        return [f"results-{name}-losses.svg", *(f"results-{name}-gap-{n}.svg" for n in rivals)]
    compared = [line for line in summary.lines if line.comparison]
    judged = any(line.comparison and line.comparison.covers_seeds for line in compared)
    return [f"results-{name}.svg"] if judged else []


def draw(found: dict[str, Summary]) -> None:
    """The pictures of all studies; what is no longer named is removed."""
    for path in IMAGES.glob("results-*.svg"):
        path.unlink()
    for name, summary in found.items():
        files = pictures(name, summary)
        ladder = rungs.read_ladder(summary.study)
        if ladder and ladder.laws:
            drawn = [plot.svg for plot in rungs.draw(ladder, ladder.laws)]
        else:
            drawn = [value_plot(summary).svg or forest(summary)]
        for file, svg in zip(files, drawn, strict=False):
            (IMAGES / file).write_text(standalone(svg), encoding="utf-8")


def standalone(svg: str) -> str:
    """A plot of the page as a file of its own, in the reader's theme."""
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    style = f"<style>{css_variables()} svg {{ background: var(--page); }}</style>"
    opened = svg.replace("<svg", f"<svg {spaces}", 1)
    return re.sub(r"(<svg[^>]*>)", rf"\1{style}", opened, count=1) + "\n"


def mixtures(found: dict[str, Summary]) -> Iterator[str]:
    """The learned weight of dot in every mixture that has one, by layer."""
    rows = []
    for name, summary in found.items():
        for row in summary.study.rows:
            parts = row.spec.split("+")
            if "dot" not in parts or len(parts) < 2 or "," in row.spec:
                continue
            runs = [run.arrays("attention.npz") for run in row.finished]
            for stack in ("encoder", "decoder"):
                key = f"{stack}.alphas"
                seen = [a[key][..., parts.index("dot")] for a in runs if key in a]
                if seen:
                    layers = np.stack(seen).transpose(1, 0, 2)  # (layers, seeds, heads)
                    shares = [
                        f"{part.mean():.2f} ({part.min():.2f}\N{EN DASH}{part.max():.2f})"
                        for part in layers
                    ]
                    rows.append([name, row.label, stack, "; ".join(shares)])
    if not rows:
        yield "No record has mixtures with dot."
        return
    yield (
        "The weight of the dot part, which begins at one half (of two parts): the mean over heads "
        "and seeds, and the smallest and largest of them, layer by layer."
    )
    yield Table(["record", "row", "stack", "weight of dot, layer 1; 2; ..."], rows).markdown()


def random_heads(found: dict[str, Summary]) -> Iterator[str]:
    """How many heads of `random` are convolutions: tables that the offset explains."""
    rows = []
    for name, summary in found.items():
        for row in summary.study.rows:
            if row.spec != "random" or row.varied:
                continue
            runs = [run.arrays("attention.npz") for run in row.finished]
            for stack in ("encoder", "decoder"):
                maps = [a[f"{stack}.map"] for a in runs if f"{stack}.map" in a]
                if maps:
                    shares = [by_offset(head) for seed in maps for layer in seed for head in layer]
                    known = [share for share in shares if share is not None]
                    record = name + row.label.removeprefix("random")  # other positions
                    rows.append([record, stack, *_counted(known)])
    if not rows:
        yield "Unknown: no record has attention maps of `random`."
        return
    yield (
        "From the kept corner of each table (`attention.npz`; weights in steps of 1/255, so what "
        "is smaller is not seen): the share of the variance of a head's weights that is explained "
        "by the offset j - i alone, over the rows behind the first quarter. A head "
        f"that it explains by {CONVOLUTION:.0%} or more is counted as a convolution."
    )
    head = ["record", "stack", "heads", "convolutions", "explained, mean (range)"]
    yield Table(head, rows).markdown()


def _counted(shares: Sequence[float]) -> list[str]:
    if not shares:
        return ["0", MISSING, "unknown"]
    many = sum(share >= CONVOLUTION for share in shares)
    spread = f"{np.mean(shares):.2f} ({min(shares):.2f}\N{EN DASH}{max(shares):.2f})"
    return [str(len(shares)), f"{many} ({many / len(shares):.0%})", spread]


def by_offset(weights: np.ndarray) -> float | None:
    """How much of a table's variance the mean over each diagonal explains; None if it has none."""
    side = min(weights.shape)
    table = weights[:side, :side].astype(np.float64)
    queries, keys = np.nonzero(table.sum(1, keepdims=True) * np.ones(side) > 0)
    causal = not np.triu(table, 1).any()
    kept = (queries >= side // 4) & ((keys <= queries) if causal else (keys >= 0))
    queries, keys = queries[kept], keys[kept]
    values, offsets = table[queries, keys], keys - queries + side
    if len(values) < 2 or values.var() == 0:
        return None
    means = np.bincount(offsets, values) / np.maximum(1, np.bincount(offsets))
    return float(1 - ((values - means[offsets]) ** 2).sum() / ((values - values.mean()) ** 2).sum())


def main_table(found: dict[str, Summary]) -> str:
    """README.md's table: one study of each kind of task."""
    rows = []
    for name, task in README_STUDIES.items():
        summary = found[name]
        lines = {line.row.label: line for line in summary.lines}
        cells_of = [_cell(summary, lines.get(spec)) for spec in (summary.dot_name, *README_ROWS)]
        rows.append(
            f"| [{task}](results/{name}.md), {summary.metric_name} | {' | '.join(cells_of)} |"
        )
    head = ["task, metric", "best dot", *(f"`{spec}`" for spec in README_ROWS)]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows])


def _cell(summary: Summary, line: object) -> str:
    scores = getattr(line, "scores", ())
    if not scores:
        return "not run"
    found = getattr(line, "comparison", None)
    return span(scores, summary.digits) + (f", {found.word}" if found else "")


def with_table(readme: str, table: str) -> str:
    """README.md with the table between its markers."""
    first, last = readme.index(BEGIN) + len(BEGIN), readme.index(END)
    return f"{readme[:first]}\n{table}\n{readme[last:]}"


if __name__ == "__main__":
    everything = summaries()
    draw(everything)
    (ROOT / "docs" / "results.md").write_text(page(everything), encoding="utf-8")
    path = ROOT / "README.md"
    path.write_text(with_table(path.read_text(), main_table(everything)), encoding="utf-8")
