"""What the report says, in order: the answer, the table, the paper, the curves, the attention."""

import shlex
from collections.abc import Iterable, Sequence

from synthesizer.report import ladder
from synthesizer.report.attention_plots import (
    alpha_plots,
    attention_maps,
    shown_lines,
    weight_histograms,
)
from synthesizer.report.metric_tables import (
    difference_text,
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
from synthesizer.report.reliability import floors, reliability
from synthesizer.report.search import search_sentence, search_table, trial_table
from synthesizer.report.summary import Opponent, Summary, machines
from synthesizer.report.tables import TERMS, cells, markdown
from synthesizer.untrusted import fenced, plain

MOST_SAMPLES = 3
DIFFERENCES = (
    "Differences from dot, each metric with its own margin and with the interval that its word is "
    "read off; every metric has 5 % of error of its own."
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
            "other beats in both (filled); speeds are those of the machine that ran them."
            + _left_to_the_table(summary),
        ),
        Plot(
            quality_and_cache(summary),
            "Quality against what decoding keeps of every token: values, and keys where a part "
            "of the attention is a dot product.",
        ),
    ]
    plots = [varied, differences] if varied.svg else [differences, *fronts]
    shown = figures([plot for plot in plots if plot.svg])
    words = [paragraph(summary.answer, "answer"), paragraph(summary.scope, "note")]
    return "\n".join([*words, shown])


def sections(summary: Summary, *, plots: bool = True) -> list[Section]:
    """All that follows the first screen; what no run has is left out."""
    found = [
        Section("Results", _table(summary)),
        Section("Ladder", _ladder(summary, plots=plots)),
        Section("All metrics", _all_metrics(summary)),
        *(Section(f"Against {rival.label}", _against(rival)) for rival in summary.opponents),
        Section("By varied value", _varied(summary)),
        Section("Search", _trials(summary)),
        Section("Published results", _published(summary)),
        Section("Learning curves", _curves(summary) if plots else ""),
        Section("Attention maps", _attention(summary) if plots else ""),
        Section("Distribution of attention weights", _weights(summary) if plots else ""),
        Section("Mixture weights", _alphas(summary) if plots else ""),
        Section("Samples", _samples(summary)),
        Section("Reproduce", _origin(summary)),
    ]
    return [section for section in found if section.body]


def explanation() -> Section:
    """What the headings of the tables mean."""
    return Section("Terms", glossary(TERMS))


def notes(summary: Summary) -> list[str]:
    """What a reader must know to read the table."""
    facts = summary.study.facts
    said = [
        *reliability(summary),
    ]
    chosen = facts.get("chosen_for") or summary.study.recipe.get("chosen_for")
    if facts.get("tune"):
        said.append(search_sentence(summary))
    elif chosen:
        said.append(
            f"All variants use the recipe's learning rates, which were chosen for {chosen}."
        )
    else:
        said.append("All variants use the recipe's learning rates; none was tuned on its own.")
    for one in facts.get("measured") or ():
        tried = [
            f"{', '.join(trial['changes']) or 'as inferred'} {trial['validation']:.2f}"
            for trial in one["trials"]
            if trial["validation"] is not None
        ]
        said.append(
            f"The {one['choice']} of all variants was chosen by {one['row']} on validation "
            f"({'; '.join(tried)}): {', '.join(one['chosen']) or 'as inferred'}."
        )
    if facts.get("match") == "time":
        said.append(
            "All variants are trained for as many seconds as dot: the steps of each follow from "
            "steps timed beforehand, in turns with dot's, and stand in its remarks. The search ran "
            "with equal steps."
        )
    elif facts.get("match") not in (None, "none"):
        budget = {"params": "parameters", "flops": "FLOPs"}.get(facts["match"], facts["match"])
        said.append(
            f"The feed-forward width is chosen so that all variants have the same {budget}."
        )
    before = facts.get("pretrain")
    if before:
        said.append(
            f"Every variant was pretrained first by {before['recipe']}, {before['steps']:,} steps, "
            "with the same synthesis and seed."
        )
    if len(kinds := machines(summary.finished)) > 1:
        said.append(
            "Speeds stand beside dot's only where both were measured on machines of one kind; "
            f"these runs were made on {len(kinds)}: {'; '.join(kinds)}."
        )
    left = _without_bias(summary)
    if left:
        said.append(f"{left}: no logits that the relative bias could act on, so it runs without.")
    return [*said, *_without_a_network(summary)]


def _without_bias(summary: Summary) -> str:
    """The rows some of whose layers run without the relative bias."""
    rows = [
        line.row.label
        for line in summary.lines
        if any((run.result or {}).get("layers_without_bias") for run in line.row.finished)
    ]
    return ", ".join(rows)


def _without_a_network(summary: Summary) -> list[str]:
    """What can be had without a network, as the runs report it of their data."""
    return [
        f"Without any network, {words} has {value:.{summary.digits}f} "
        f"({summary.metric_name}) on the same examples."
        for words, value in floors(summary).items()
    ]


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
            parts += ["## Search", markdown(*trial_table(summary))]
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
        "Bars: the intervals that the words are read off, over seeds and examples"
        if any(line.comparison and line.comparison.covers_seeds for line in summary.lines)
        else "Dashed bars: test examples alone, as there are too few seeds to know theirs"
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
    rows = [[label, difference_text(found)] for label, found in rival.compared.items()]
    return ["variant", f"difference from {rival.label}, verdict"], rows


def _rival_note(rival: Opponent) -> str:
    return (
        f"No worse means worse than {rival.label} by less than {rival.margin}. "
        "These words have 5 % of error of their own, beside those of the table above."
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
    return Plot(drawn, f"Means over seeds, by {key}.")


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
    return "\n".join(
        [plot, table(*search_table(summary)), table(*trial_table(summary), sortable=True)]
    )


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
    plots = [
        Plot(training_loss(summary), "Mean over seeds; the band is their range."),
        Plot(validation_metric(summary), "The same on validation; up is better."),
        Plot(
            validation_by_time(summary),
            "The same against the seconds that training took, evaluation left out.",
        ),
    ]
    shown = [plot for plot in plots if plot.svg]
    return figures(shown) if shown else ""


def _attention(summary: Summary) -> str:
    plots = attention_maps(shown_lines(summary))
    words = "The first tokens of one test example, the same for all variants."
    return "\n".join([paragraph(words, "note"), figures(plots)]) if plots else ""


def _weights(summary: Summary) -> str:
    plots = weight_histograms(shown_lines(summary))
    return figures(plots) if plots else ""


def _alphas(summary: Summary) -> str:
    plots = alpha_plots(summary)
    return figures(plots) if plots else ""


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
                str(run.path),
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
        shlex.join(["synthesizer", "train", str(run.path / "recipe.toml")])
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
