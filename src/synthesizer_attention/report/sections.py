"""What the report says, in order: the answer, the table, the paper, the curves, the attention."""

import shlex
from collections.abc import Iterable, Sequence

from synthesizer_attention.report import ladder
from synthesizer_attention.report.attention_plots import (
    alpha_plots,
    attention_maps,
    shown_lines,
    weight_histograms,
)
from synthesizer_attention.report.blocks import (
    Block,
    Code,
    Figures,
    Glossary,
    InText,
    OnPage,
    Placed,
    Plot,
    Points,
    Section,
    Table,
    Text,
    markdown,
)
from synthesizer_attention.report.costs import machines
from synthesizer_attention.report.metric_tables import (
    difference_and_verdict,
    metric_tables,
    varied_points,
    varied_table,
)
from synthesizer_attention.report.plots import (
    by_value,
    forest,
    quality_and_cache,
    quality_and_speed,
    score_by_rate,
    training_loss,
    validation_by_time,
    validation_metric,
)
from synthesizer_attention.report.published import BIBTEX, paper_tables
from synthesizer_attention.report.reliability import notes
from synthesizer_attention.report.search import search_table, trial_table
from synthesizer_attention.report.summary import Line, Opponent, Summary
from synthesizer_attention.report.tables import TERMS, cells
from synthesizer_attention.run.packed import named

MOST_SAMPLES = 3
LINE_END = " \N{DOWNWARDS ARROW WITH CORNER LEFTWARDS} "  # a line break within a sample


def lead(summary: Summary, *, plots: bool = True) -> list[Placed]:
    """The first screen: the answer, its scope, the differences and the Pareto fronts.

    Rows with varied values are drawn by value instead: their scores are not of one task.
    """
    words: list[Placed] = [Text(summary.answer, "answer"), Text(summary.scope, "note")]
    if not plots:
        return words[:1]
    differences = Plot(forest(summary), _forest_caption(summary))
    varied = value_plot(summary)
    if varied.svg:
        return [*words, Figures([varied, differences])]
    speed = Plot(
        quality_and_speed(summary),
        "Quality against training speed, best first. The line joins the variants that no "
        "other beats in both (filled); speeds are those of the machine that ran them. "
        "A number with an arrow is the score of a variant below the plot."
        + _left_to_the_table(summary),
    )
    cache = Plot(
        quality_and_cache(summary),
        "Quality against what decoding keeps of every token: values, and keys where a part "
        "of the attention is a dot product.",
    )
    return [*words, Figures([differences, speed, cache])]


def sections(summary: Summary, *, plots: bool = True) -> list[Section]:
    """All that follows the first screen; what no run has is left out."""
    found = [
        Section("Results", _results(summary)),
        Section("Ladder", _ladder(summary, plots=plots)),
        Section("All metrics", _all_metrics(summary)),
        *(Section(f"Against {rival.label}", _against(rival)) for rival in summary.opponents),
        Section("By varied value", [Table(*found)] if (found := varied_table(summary)) else []),
        Section("Hyperparameter search", _trials(summary, plots=plots)),
        Section("Published results", _published(summary)),
        *(_drawn(summary) if plots else ()),
        Section("Samples", _samples(summary)),
        Section("Reproduce", _origin(summary)),
    ]
    return [section for section in found if section.blocks]


def _drawn(summary: Summary) -> list[Section]:
    """The sections that are plots alone."""
    attended = shown_lines(summary)
    return [
        Section("Learning curves", _figures(_curves(summary))),
        Section("Attention maps", _attention(attended)),
        Section("Distribution of attention weights", _figures(weight_histograms(attended))),
        Section("Mixture weights", _figures(alpha_plots(summary))),
    ]


def _figures(plots: Sequence[Plot]) -> list[Placed]:
    found = Figures(plots)
    return [found] if found.shown else []


def explanation() -> Section:
    """What the headings of the tables mean, and how to cite the paper."""
    return Section("Terms", [Glossary(TERMS), Code(BIBTEX, "BibTeX of the paper", "bibtex")])


def text_of(summaries: Sequence[Summary]) -> str:
    """report.md."""
    parts: list[str] = []
    for summary in summaries:
        first = [Text(summary.answer, "answer"), Text(summary.scope)]
        parts += [f"# {Text(summary.question).markdown()}", *(one.markdown() for one in first)]
        parts += markdown(sections(summary, plots=False))
    parts += [Code(BIBTEX, language="bibtex").markdown()]
    return "\n\n".join(parts) + "\n"


def _forest_caption(summary: Summary) -> str:
    bars = (
        "Bars: the intervals that the verdicts follow from, over seeds and test examples"
        if any(line.comparison and line.comparison.covers_seeds for line in summary.lines)
        else "Dashed bars: intervals over test examples alone, as there are too few seeds"
    )
    return f"{bars}. Shaded: worse than dot by less than the margin ({summary.margin})."


def _results(summary: Summary) -> list[Placed]:
    head, rows = cells(summary)
    terms = {name: TERMS[name] for name in head if name in TERMS}
    said = [Text(note, "note") for note in notes(summary)]
    return [Table(head, rows, terms=terms, sortable=True), *said, InText(Glossary(terms))]


def _ladder(summary: Summary, *, plots: bool) -> Sequence[Placed]:
    found = ladder.read_ladder(summary.study)
    return ladder.blocks(found, plots=plots) if found else []


def _all_metrics(summary: Summary) -> list[Placed]:
    found = metric_tables(summary)
    if found is None:
        return []
    note = (
        "Differences from dot. Each metric has its own margin, its own intervals and its own error "
        "rate of 5 %."
    )
    means, differences = (Table(*each, sortable=True) for each in (found.means, found.differences))
    return [means, Text(note, "note"), differences]


def opponent_table(rival: Opponent) -> tuple[list[str], list[list[str]]]:
    """Head and rows of what is known of each row beside an opponent."""
    rows = [[label, difference_and_verdict(found)] for label, found in rival.compared.items()]
    return ["variant", f"difference from {rival.label}, verdict"], rows


def _against(rival: Opponent) -> list[Placed]:
    note = (
        f"No worse means worse than {rival.label} by less than {rival.margin}. "
        "These verdicts have an error rate of 5 % of their own, apart from the table above."
    )
    return [Table(*opponent_table(rival)), Text(note, "note")]


def value_plot(summary: Summary) -> Plot:
    """The score against the one key that was varied; empty where there is none, or several."""
    keys = {change.partition("=")[0] for row in summary.study.rows for change in row.varied}
    if len(keys) != 1 or summary.study.facts.get("ladder"):
        return Plot("", "")
    (key,) = keys
    points = varied_points(summary.study, summary.metric)
    drawn = by_value(summary, points, key.rpartition(".")[2])
    return Plot(
        drawn, f"Means over seeds, by {key}; small open marks beside them are single seeds."
    )


def _left_to_the_table(summary: Summary) -> str:
    left = len(summary.lines) - len(summary.drawn)
    return (
        f" Plots show the best {len(summary.drawn)}; {left} more are in the table." if left else ""
    )


def _trials(summary: Summary, *, plots: bool) -> list[Placed]:
    if not any(line.row.trials for line in summary.lines):
        return []
    found: list[Placed] = []
    if plots and summary.study.facts.get("tune"):
        caption = (
            "Score on validation by learning rate: one open point per run, joined where two seeds "
            "tried one setting; filled: what was chosen, at the mean of its seeds."
        )
        found += [Figures([Plot(score_by_rate(summary), caption)])]
    found += [Table(*trial_table(summary), sortable=True)]
    head, rows = search_table(summary)
    return [*found, Table(head, rows)] if rows else found


def _published(summary: Summary) -> list[Placed]:
    rows = summary.study.rows
    names = [*(row.spec for row in rows), *(row.label for row in rows)]
    apart = (
        "Numbers of others, at their scale and on their machines: "
        "compare the order of the variants, not the values."
    )
    found: list[Placed] = []
    for paper in paper_tables(summary.study.recipe.get("paper"), names):
        found += [Text(f"{paper.title}. Source: {paper.source}."), Table(paper.head, paper.rows)]
        found += [Text(note, "note") for note in paper.notes]
    return [Text(apart), *found] if found else []


def _curves(summary: Summary) -> list[Plot]:
    seconds = "The same against the seconds that training took, evaluation left out."
    return [
        Plot(training_loss(summary), "Mean over seeds; the band is their range."),
        Plot(validation_metric(summary), "The same on validation; up is better."),
        Plot(validation_by_time(summary), seconds),
    ]


def _attention(lines: Sequence[Line]) -> list[Placed]:
    words = "The first tokens of one test example, the same for all variants."
    plots = _figures(attention_maps(lines))
    return [Text(words, "note"), *plots] if plots else []


def _samples(summary: Summary) -> list[Placed]:
    """A few test examples, and what the first seed of each row made of them."""
    written = [
        (line.row.label, line.row.finished[0].samples())
        for line in summary.lines
        if line.row.finished
    ]
    having = [(label, samples) for label, samples in written if samples]
    if not having:
        return []
    count = min(MOST_SAMPLES, *(len(samples) for _, samples in having))
    asked = having[0][1][:count]
    named = [(part, part, asked) for part in ("source", "reference")]
    named += [(label, "output", samples[:count]) for label, samples in having]
    rows = [
        [name, *(sample.get(part, "").replace("\n", LINE_END) for sample in samples)]
        for name, part, samples in named
    ]
    head = ["", *(f"example {place + 1}" for place in range(count))]
    return [OnPage(Table(head, rows, of_words=True))]


def _origin(summary: Summary) -> list[Placed]:
    runs = summary.study.runs
    listed = [
        [str(named(run.path)), run.spec, str(run.seed), run.state,
         (run.result or {}).get("recipe_hash", "")]
        for run in runs
    ]  # fmt: skip
    commands = [shlex.join(["synthesizer", "train", f"{row[0]}/recipe.toml"]) for row in listed]
    own = summary.study.command
    recipe = (runs[0].path / "recipe.toml") if runs else None
    shown = recipe.read_text(encoding="utf-8", errors="replace") if recipe else ""
    table: Block = Table(["run", "synthesis", "seed", "state", "recipe"], listed, sortable=True)
    return [
        Points(_facts(summary)),
        Code(own or "\n".join(commands), "" if own else "One command per run"),
        OnPage(table),
        OnPage(Code(shown, "The recipe of the first run")),
    ]


def _facts(summary: Summary) -> list[str]:
    """Commit, versions, seeds, machine, signatures: what differs between runs is listed."""
    results = [run.result for run in summary.finished if run.result]
    versions = [
        ", ".join(f"{name} {version}" for name, version in result.get("versions", {}).items())
        for result in results
    ]
    found = [
        ("commit", _distinct(str(result.get("commit") or "not known") for result in results)),
        ("versions", _distinct(versions)),
        ("machine", "; ".join(machines(summary.finished))),
        ("host", _distinct(str(result["host"]) for result in results if "host" in result)),
        ("seeds", _distinct(str(run.seed) for run in summary.finished)),
        ("data", _distinct(str(r.get("data", {}).get("origin", "not known")) for r in results)),
    ]
    for name in dict.fromkeys(name for r in results for name in r.get("signatures", {})):
        values = _distinct(r["signatures"][name] for r in results if name in r["signatures"])
        found.append((f"signature of {name}", values))
    return [f"{name}: {value}" for name, value in found if value]


def _distinct(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(values))
