"""What the report says, in order: the answer, the table, the paper, the curves, the attention."""

import shlex
from collections.abc import Iterable, Sequence

from synthesizer.experiment.packed import named
from synthesizer.report import ladder
from synthesizer.report.attention_plots import (
    alpha_plots,
    attention_maps,
    shown_lines,
    weight_histograms,
)
from synthesizer.report.costs import machines
from synthesizer.report.metric_tables import (
    difference_and_verdict,
    metric_tables,
    varied_points,
    varied_table,
)
from synthesizer.report.page import (
    Plot,
    Section,
    details,
    figures,
    glossary,
    paragraph,
    table,
    text,
)
from synthesizer.report.plots import (
    by_value,
    forest,
    quality_and_cache,
    quality_and_speed,
    score_by_rate,
    training_loss,
    validation_by_time,
    validation_metric,
)
from synthesizer.report.published import BIBTEX, PaperTable, paper_tables
from synthesizer.report.reliability import notes
from synthesizer.report.search import search_table, trial_table
from synthesizer.report.summary import Line, Opponent, Summary
from synthesizer.report.tables import TERMS, cells, markdown
from synthesizer.untrusted import fenced, plain

MOST_SAMPLES = 3
DIFFERENCES = (
    "Differences from dot. Each metric has its own margin, its own intervals and its own error "
    "rate of 5 %."
)
LINE_END = " \N{DOWNWARDS ARROW WITH CORNER LEFTWARDS} "  # a line break within a sample


def lead(summary: Summary) -> str:
    """The first screen: the answer, its scope, the differences and the Pareto fronts.

    Rows with varied values are drawn by value instead: their scores are not of one task.
    """
    differences = Plot(forest(summary), _forest_caption(summary))
    varied = value_plot(summary)
    fronts = [
        Plot(
            quality_and_speed(summary),
            "Quality against training speed, best first. The line joins the variants that no "
            "other beats in both (filled); speeds are those of the machine that ran them. "
            "A number with an arrow is the score of a variant below the plot."
            + _left_to_the_table(summary),
        ),
        Plot(
            quality_and_cache(summary),
            "Quality against what decoding keeps of every token: values, and keys where a part "
            "of the attention is a dot product.",
        ),
    ]
    plots = [varied, differences] if varied.svg else [differences, *fronts]
    words = [paragraph(summary.answer, "answer"), paragraph(summary.scope, "note")]
    return "\n".join([*words, figures(plots)])


def sections(summary: Summary, *, plots: bool = True) -> list[Section]:
    """All that follows the first screen; what no run has is left out."""
    found = [
        Section("Results", _table(summary)),
        Section("Ladder", _ladder(summary, plots=plots)),
        Section("All metrics", _all_metrics(summary)),
        *(Section(f"Against {rival.label}", _against(rival)) for rival in summary.opponents),
        Section("By varied value", _varied(summary)),
        Section("Hyperparameter search", _trials(summary)),
        Section("Published results", _published(summary)),
        *(_drawn(summary) if plots else ()),
        Section("Samples", _samples(summary)),
        Section("Reproduce", _origin(summary)),
    ]
    return [section for section in found if section.body]


def _drawn(summary: Summary) -> list[Section]:
    """The sections that are plots alone."""
    attended = shown_lines(summary)
    return [
        Section("Learning curves", _curves(summary)),
        Section("Attention maps", _attention(attended)),
        Section("Distribution of attention weights", figures(weight_histograms(attended))),
        Section("Mixture weights", figures(alpha_plots(summary))),
    ]


def explanation() -> Section:
    """What the headings of the tables mean."""
    return Section("Terms", glossary(TERMS))


def text_of(summaries: Sequence[Summary]) -> str:
    """report.md."""
    parts: list[str] = []
    for summary in summaries:
        question, answer, scope = map(plain, (summary.question, summary.answer, summary.scope))
        parts += [f"# {question}", f"**{answer}**", scope]
        head, rows = cells(summary)
        parts += ["## Results", markdown(head, rows), *map(plain, notes(summary))]
        parts += [
            "\n".join(f"- {plain(name)}: {plain(TERMS[name])}" for name in head if name in TERMS)
        ]
        rungs = ladder.read_ladder(summary.study)
        parts += ["## Ladder", *ladder.text(rungs)] if rungs else []
        metrics = metric_tables(summary)
        if metrics:
            parts += ["## All metrics", markdown(*metrics.means), DIFFERENCES]
            parts += [markdown(*metrics.differences)]
        for rival in summary.opponents:
            parts += [f"## Against {plain(rival.label)}", markdown(*opponent_table(rival))]
            parts += [plain(_rival_note(rival))]
        varied = varied_table(summary)
        if varied:
            parts += ["## By varied value", markdown(*varied)]
        if any(line.row.trials for line in summary.lines):
            parts += ["## Hyperparameter search", markdown(*trial_table(summary))]
            parts += [markdown(*found)] if (found := search_table(summary))[1] else []
        published = _paper_of(summary)
        if published:
            parts += ["## Published results", _apart()]
        for paper in published:
            source = plain(f"{paper.title}. Source: {paper.source}.")
            parts += [source, markdown(paper.head, paper.rows), *map(plain, paper.notes)]
        parts += ["## Reproduce", "\n".join(f"- {plain(fact)}" for fact in _facts(summary))]
        parts += [fenced("\n".join(_commands(summary)))]
    parts += ["```bibtex\n" + BIBTEX + "\n```"]
    return "\n\n".join(parts) + "\n"


def _forest_caption(summary: Summary) -> str:
    bars = (
        "Bars: the intervals that the verdicts follow from, over seeds and test examples"
        if any(line.comparison and line.comparison.covers_seeds for line in summary.lines)
        else "Dashed bars: intervals over test examples alone, as there are too few seeds"
    )
    return f"{bars}. Shaded: worse than dot by less than the margin ({summary.margin})."


def _table(summary: Summary) -> str:
    shown = table(*cells(summary), terms=TERMS, sortable=True)
    return "\n".join([shown, *(paragraph(note, "note") for note in notes(summary))])


def _ladder(summary: Summary, *, plots: bool) -> str:
    found = ladder.read_ladder(summary.study)
    return ladder.html(found, plots=plots) if found else ""


def _all_metrics(summary: Summary) -> str:
    found = metric_tables(summary)
    if found is None:
        return ""
    means, differences = (table(*each, sortable=True) for each in (found.means, found.differences))
    return "\n".join([means, paragraph(DIFFERENCES, "note"), differences])


def opponent_table(rival: Opponent) -> tuple[list[str], list[list[str]]]:
    """Head and rows of what is known of each row beside an opponent."""
    rows = [[label, difference_and_verdict(found)] for label, found in rival.compared.items()]
    return ["variant", f"difference from {rival.label}, verdict"], rows


def _rival_note(rival: Opponent) -> str:
    return (
        f"No worse means worse than {rival.label} by less than {rival.margin}. "
        "These verdicts have an error rate of 5 % of their own, apart from the table above."
    )


def _against(rival: Opponent) -> str:
    return "\n".join([table(*opponent_table(rival)), paragraph(_rival_note(rival), "note")])


def _varied(summary: Summary) -> str:
    found = varied_table(summary)
    return "" if found is None else table(*found)


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


def _trials(summary: Summary) -> str:
    if not any(line.row.trials for line in summary.lines):
        return ""
    caption = (
        "Score on validation by learning rate: one open point per run, joined where two seeds "
        "tried one setting; filled: what was chosen, at the mean of its seeds."
    )
    plot = (
        figures([Plot(score_by_rate(summary), caption)]) if summary.study.facts.get("tune") else ""
    )
    searched = table(*found) if (found := search_table(summary))[1] else ""
    return "\n".join([plot, searched, table(*trial_table(summary), sortable=True)])


def _paper_of(summary: Summary) -> list[PaperTable]:
    key = summary.study.recipe.get("paper")
    rows = summary.study.rows
    return paper_tables(key, [*(row.spec for row in rows), *(row.label for row in rows)])


def _apart() -> str:
    return (
        "Numbers of others, at their scale and on their machines: "
        "compare the order of the variants, not the values."
    )


def _published(summary: Summary) -> str:
    parts = []
    for paper in _paper_of(summary):
        parts.append(table(paper.head, paper.rows, caption=f"{paper.title}."))
        parts += [paragraph(f"Source: {paper.source}.", "note")]
        parts += [paragraph(note, "note") for note in paper.notes]
    return "\n".join([paragraph(_apart()), *parts]) if parts else ""


def _curves(summary: Summary) -> str:
    seconds = "The same against the seconds that training took, evaluation left out."
    return figures(
        [
            Plot(training_loss(summary), "Mean over seeds; the band is their range."),
            Plot(validation_metric(summary), "The same on validation; up is better."),
            Plot(validation_by_time(summary), seconds),
        ]
    )


def _attention(lines: Sequence[Line]) -> str:
    plots = attention_maps(lines)
    words = "The first tokens of one test example, the same for all variants."
    return "\n".join([paragraph(words, "note"), figures(plots)]) if plots else ""


def _samples(summary: Summary) -> str:
    """A few test examples, and what the first seed of each row made of them."""
    written = [
        (line.row.label, line.row.finished[0].samples())
        for line in summary.lines
        if line.row.finished
    ]
    having = [(label, samples) for label, samples in written if samples]
    if not having:
        return ""
    count = min(MOST_SAMPLES, *(len(samples) for _, samples in having))
    asked = having[0][1][:count]
    named = [(part, part, asked) for part in ("source", "reference")]
    named += [(label, "output", samples[:count]) for label, samples in having]
    rows = [
        [name, *(sample.get(part, "").replace("\n", LINE_END) for sample in samples)]
        for name, part, samples in named
    ]
    head = ["", *(f"example {place + 1}" for place in range(count))]
    return f'<div class="words">{table(head, rows)}</div>'


def _origin(summary: Summary) -> str:
    facts = "".join(f"<li>{text(fact)}</li>" for fact in _facts(summary))
    runs = table(
        ["run", "synthesis", "seed", "state", "recipe"],
        [
            [
                str(named(run.path)),
                run.spec,
                str(run.seed),
                run.state,
                (run.result or {}).get("recipe_hash", ""),
            ]
            for run in summary.study.runs
        ],
        sortable=True,
    )
    recipe = (summary.study.runs[0].path / "recipe.toml") if summary.study.runs else None
    shown = recipe.read_text(encoding="utf-8", errors="replace") if recipe else ""
    return "\n".join(
        [
            _shown_commands(summary),
            f"<ul>{facts}</ul>",
            runs,
            details("The recipe of the first run", shown),
            details("BibTeX of the paper", BIBTEX),
        ]
    )


def _shown_commands(summary: Summary) -> str:
    commands = "\n".join(_commands(summary))
    if summary.study.command:
        return f'<pre tabindex="0">{text(commands)}</pre>'
    return details("One command per run", commands)


def _commands(summary: Summary) -> list[str]:
    if summary.study.command:
        return [summary.study.command]
    return [
        shlex.join(["synthesizer", "train", str(named(run.path) / "recipe.toml")])
        for run in summary.study.runs
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
