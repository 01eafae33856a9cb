"""Run directories and paper.toml become report.html, report.md and table.csv (no torch).

`lead` is the first screen, `sections` what follows it; both files are written from the same blocks.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from synthesizer_attention.report import ladder, plots, tables
from synthesizer_attention.report.load import machines, read_studies
from synthesizer_attention.report.notes import notes
from synthesizer_attention.report.page import (
    Block,
    Code,
    Figures,
    Glossary,
    Link,
    Plot,
    Points,
    Section,
    Table,
    Text,
    markdown,
    page,
)
from synthesizer_attention.report.summary import Summary, summarize
from synthesizer_attention.run.files import make_folder, remove_leftovers, write_text
from synthesizer_attention.run.records import PACKED, named
from synthesizer_attention.study.stats import Comparison

MOST_DRAWN = 6  # studies with plots in one page
MOST_SAMPLES = 3
NAMES = ("report.html", "report.md", "table.csv")
LINE_END = " \N{DOWNWARDS ARROW WITH CORNER LEFTWARDS} "  # a line break within a sample
BIBTEX = """@inproceedings{tay2021synthesizer,
  title     = {Synthesizer: Rethinking Self-Attention for Transformer Models},
  author    = {Tay and Bahri and Metzler and Juan and Zhao and Zheng},
  booktitle = {International Conference on Machine Learning},
  series    = {PMLR},
  volume    = {139},
  pages     = {10183--10192},
  year      = {2021},
}"""


def write_report(dirs: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Report on every run below dirs; the files go to out, by default to the first of dirs."""
    return write(summarize_all(dirs), Path(out if out is not None else dirs[0]))


def summarize_all(dirs: Sequence[str | Path], *, verify: bool = True) -> list[Summary]:
    """The numbers and the answer of every study below dirs."""
    studies = read_studies([Path(path) for path in dirs], verify=verify)
    return [summarize(study) for study in studies]


def write(summaries: Sequence[Summary], home: Path, live: str = "") -> Path:
    """Put the three files into a directory, or beside a .zip and named as it; return the page.

    `live` is the name of the page beside it in which the models run.
    """
    texts = (html_of(summaries, live), text_of(summaries), tables.csv_text(summaries))
    names: Sequence[str] = NAMES
    if home.suffix == PACKED and not home.is_dir():
        names = [f"{home.stem}{Path(name).suffix}" for name in NAMES]
        home = home.parent
    write_files(home, dict(zip(names, texts, strict=True)))
    return home / names[0]


def write_files(home: Path, texts: Mapping[str, str]) -> None:
    """Write files of text into a directory, each atomically; make it where it is missing."""
    make_folder(home)
    remove_leftovers(home)
    for name, text in texts.items():
        write_text(home / name, text)


def html_of(summaries: Sequence[Summary], live: str = "") -> str:
    """report.html: one study, or the sections of several below each other."""
    words = "Run these models in your browser: type a text, see where each of them attends."
    link: list[Block] = [Link(words, live)] if live else []
    meant = Glossary(tables.terms(summaries))
    terms = Section("Terms", [meant, Code(BIBTEX, "BibTeX of the paper", "bibtex")])
    if len(summaries) == 1:
        (only,) = summaries
        return page(only.question, [*sections(only), terms], [*lead(only), *link])
    parts = []
    for index, summary in enumerate(summaries):
        drawn = index < MOST_DRAWN
        answer = Section("the answer", lead(summary, drawn=drawn))
        for heading, blocks in (answer, *sections(summary, drawn=drawn)):
            parts.append(Section(f"{summary.study.name}: {heading}", blocks))
    note = (
        f"Plots are drawn for the first {MOST_DRAWN} of {len(summaries)} studies; "
        "report a directory alone for its plots."
    )
    first = [Text(note, "note")] if len(summaries) > MOST_DRAWN else []
    return page("Which tasks need dot-product attention?", [*parts, terms], [*first, *link])


def text_of(summaries: Sequence[Summary]) -> str:
    """report.md."""
    parts: list[str] = []
    for summary in summaries:
        parts += [f"# {Text(summary.question).markdown()}"]
        parts += [Text(summary.answer, "answer").markdown(), Text(summary.scope).markdown()]
        parts += markdown(sections(summary, drawn=False))
    return "\n\n".join([*parts, Code(BIBTEX, language="bibtex").markdown()]) + "\n"


def lead(summary: Summary, *, drawn: bool = True) -> list[Block]:
    """The first screen: the answer, its scope, the differences and the Pareto fronts.

    Rows with varied values are drawn by value instead: their scores are not of one task.
    """
    answer: list[Block] = [Text(summary.answer, "answer")]
    if advice := tables.advice(summary):
        answer.append(Text(advice, "box"))
    if not drawn:
        return answer
    words: list[Block] = [*answer, Text(summary.scope, "note", folds=True)]
    bars = (
        "Bars: the intervals that the verdicts follow from, over seeds and test examples"
        if any(line.comparison and line.comparison.covers_seeds for line in summary.lines)
        else "Dashed bars: intervals over test examples alone, as there are too few seeds"
    )
    shaded = f"Shaded: worse than {summary.dot_name} by less than the margin ({summary.margin})."
    differences = Plot(plots.forest(summary), f"{bars}. {shaded}")
    varied = value_plot(summary)
    if varied.svg:
        return [*words, Figures([varied, differences])]
    count = len(summary.drawn)
    left = len(summary.lines) - count
    speed = Plot(
        plots.quality_and_speed(summary),
        "Quality against training speed, best first. The line joins the variants that no "
        "other beats in both (filled); speeds are those of the machine that ran them. "
        "Bars: standard deviation over seeds. "
        "A number with an arrow is the score of a variant below the plot."
        + (f" Plots show the best {count}; {left} more are in the table." if left else ""),
    )
    cache = Plot(
        plots.quality_and_cache(summary),
        "Quality against what decoding keeps of every token: values, and keys where a part "
        "of the attention is a dot product.",
    )
    return [*words, Figures([differences, speed, cache])]


def value_plot(summary: Summary) -> Plot:
    """The score against the one key that was varied; empty where there is none, or several."""
    keys = {change.partition("=")[0] for row in summary.study.rows for change in row.varied}
    if len(keys) != 1 or summary.study.facts.get("ladder"):
        return Plot("", "")
    (key,) = keys
    points: dict[str, list[tuple[str, list[float]]]] = {}
    for row in summary.study.rows:
        if row.varied and (scores := [*row.scores(summary.metric).values()]):
            points.setdefault(row.name, []).append((row.varied[0].partition("=")[2], scores))
    caption = f"Means over seeds, by {key}; small open marks beside them are single seeds."
    return Plot(plots.by_value(summary, points, key.rpartition(".")[2]), caption)


def sections(summary: Summary, *, drawn: bool = True) -> list[Section]:
    """All that follows the first screen; what no run has is left out."""
    rungs = ladder.read_ladder(summary.study)
    varied = tables.varied_table(summary)
    found = [
        Section("Results", _results(summary)),
        Section("Ladder", ladder.blocks(rungs, plots=drawn) if rungs else []),
        Section("All metrics", _all_metrics(summary)),
        *(Section(f"Against {rival.label}", _against(*rival)) for rival in summary.rivals),
        Section("By varied value", [Table(*varied)] if varied else []),
        Section("Hyperparameter search", _trials(summary, drawn=drawn)),
        Section("Published results", _published(summary)),
        *(_drawn(summary) if drawn else ()),
        Section("Samples", _samples(summary)),
        Section("Reproduce", _origin(summary)),
    ]
    return [section for section in found if section.blocks]


def _results(summary: Summary) -> list[Block]:
    head, rows = tables.cells(summary)
    terms = {name: text for name, text in tables.terms([summary]).items() if name in head}
    said = [Text(note, "note", folds=True) for note in notes(summary)]
    first = [0, *(place for place, name in enumerate(head) if name == "verdict")]
    order = [*first, *(place for place in range(len(head)) if place not in first)]
    head_there, *rows_there = ([line[place] for place in order] for line in (head, *rows))
    return [
        Table(head, rows, only="text"),
        Table(head_there, rows_there, terms=terms, sortable=True, only="page"),  # seen on a phone
        *said,
        Glossary(terms, only="text"),
    ]


def _all_metrics(summary: Summary) -> list[Block]:
    note = (
        "Differences from dot. Each metric has its own margin, its own intervals and its own error "
        "rate of 5 %."
    )
    if (found := tables.metric_tables(summary)) is None:
        return []
    means, differences = (Table(*each, sortable=True) for each in found)
    return [means, Text(note, "note"), differences]


def _against(rival: str, margin: str, compared: Mapping[str, Comparison]) -> list[Block]:
    rows = [[label, tables.difference_and_verdict(found)] for label, found in compared.items()]
    note = (
        f"No worse means worse than {rival} by less than {margin}. "
        "These verdicts have an error rate of 5 % of their own, apart from the table above."
    )
    return [Table(["variant", f"difference from {rival}, verdict"], rows), Text(note, "note")]


def _trials(summary: Summary, *, drawn: bool) -> list[Block]:
    if not any(line.row.trials for line in summary.lines):
        return []
    found: list[Block] = [Table(*tables.trial_table(summary), sortable=True)]
    if drawn and summary.study.facts.get("tune"):
        caption = (
            "Score on validation by learning rate: one open point per run, joined where two seeds "
            "tried one setting; filled: what was chosen, at the mean of its seeds."
        )
        found.insert(0, Figures([Plot(plots.score_by_rate(summary), caption)]))
    head, rows = tables.search_table(summary)
    return [*found, Table(head, rows)] if rows else found


def _published(summary: Summary) -> list[Block]:
    rows = summary.study.rows
    names = [*(row.spec for row in rows), *(row.label for row in rows)]
    apart = (
        "Numbers of others, at their scale and on their machines: "
        "compare the order of the variants, not the values."
    )
    found: list[Block] = []
    for paper in tables.paper_tables(summary.study.recipe.get("paper"), names):
        found += [Text(f"{paper.title}. Source: {paper.source}."), Table(paper.head, paper.rows)]
        found += [Text(note, "note") for note in paper.notes]
    return [Text(apart), *found] if found else []


def _drawn(summary: Summary) -> list[Section]:
    """The sections that are plots alone."""
    attended, mixed = plots.shown_lines(summary), plots.mixtures(summary)
    kept = (
        plots.words_of(plots.arrays_of(line), stack) for line in attended for stack in plots.STACKS
    )
    tokens_kept = next(filter(None, kept), [])
    spaced = any(" " in token for token in tokens_kept)
    words = ("" if spaced else " ").join(tokens_kept).strip()
    shown = f": {words}" if words else ""
    tokens = Text(
        f"The first tokens of one test example, the same for all variants{shown}.", "note"
    )
    found = {
        "Learning curves": plots.learning_curves(summary),
        "Attention maps": [
            *plots.attention_plots(attended, "tokens", plots.by_token, "last layer, mean of heads"),
            *plots.attention_plots(attended, "map", plots.mosaic),
        ],
        "Distribution of attention weights": plots.attention_plots(
            attended, "histogram", plots.histogram
        ),
        "Mixture weights": plots.attention_plots(mixed, "alphas", plots.alphas),
    }
    first = {"Attention maps": [tokens]}
    figures = {heading: Figures(drawn) for heading, drawn in found.items()}
    return [
        Section(heading, [*first.get(heading, []), figure])
        for heading, figure in figures.items()
        if figure.shown
    ]


def _samples(summary: Summary) -> list[Block]:
    """Test examples that rows disagree on most, and what the first seed of each made of them."""
    written = [
        (line.row.label, samples)
        for line in summary.lines
        if line.row.finished and (samples := line.row.finished[0].samples())
    ]
    if not written:
        return []
    both = range(min(len(samples) for _, samples in written))
    outputs = [{samples[place].get("output", "") for _, samples in written} for place in both]
    chosen = sorted(both, key=lambda place: -len(outputs[place]))[:MOST_SAMPLES]
    parts = [(part, part, written[0][1]) for part in ("source", "reference")]
    parts += [(label, "output", samples) for label, samples in written]
    rows = [
        [name, *(samples[place].get(part, "").replace("\n", LINE_END) for place in chosen)]
        for name, part, samples in parts
    ]
    head = ["", *(f"example {place + 1}" for place in chosen)]
    return [Table(head, rows, of_words=True, only="page")]


def _origin(summary: Summary) -> list[Block]:
    """Where the numbers come from; what differs between runs is listed."""
    runs = summary.study.runs
    listed = [
        [str(named(run.path)), run.spec, str(run.seed), run.state, run.told("recipe_hash") or ""]
        for run in runs
    ]
    commands = [shlex.join(["synthesizer", "train", f"{row[0]}/recipe.toml"]) for row in listed]
    own = summary.study.command
    recipe = (runs[0].path / "recipe.toml") if runs else None
    shown = recipe.read_text(encoding="utf-8", errors="replace") if recipe else ""
    results = [run.result for run in summary.finished if run.result]

    def distinct(values: Iterable[str]) -> str:
        return "; ".join(dict.fromkeys(values))

    facts = {
        "commit": distinct(str(result.get("commit") or "not known") for result in results),
        "versions": distinct(
            ", ".join(f"{name} {version}" for name, version in result.get("versions", {}).items())
            for result in results
        ),
        "machine": "; ".join(machines(summary.finished)),
        "host": distinct(str(result["host"]) for result in results if "host" in result),
        "seeds": distinct(str(run.seed) for run in summary.finished),
        "data": distinct(str(r.get("data", {}).get("origin", "not known")) for r in results),
    }
    for name in dict.fromkeys(name for r in results for name in r.get("signatures", {})):
        facts[f"signature of {name}"] = distinct(
            r["signatures"][name] for r in results if name in r.get("signatures", {})
        )
    head = ["run", "synthesis", "seed", "state", "recipe"]
    return [
        Points([f"{name}: {value}" for name, value in facts.items() if value]),
        Code(own or "\n".join(commands), "" if own else "One command per run"),
        Table(head, listed, sortable=True, only="page"),
        Code(shown, "The recipe of the first run", only="page"),
    ]
