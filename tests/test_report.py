"""The report, from hand-made run directories: whole, broken and half-way; seen by a browser."""

import contextlib
import csv
import io
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.axes import Axes

import browser
from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.scores import METRICS, Metric, score
from synthesizer_attention.report import plots, tables
from synthesizer_attention.report.load import Row
from synthesizer_attention.report.notes import notes
from synthesizer_attention.report.page import Section, Text, page
from synthesizer_attention.report.style import LONGEST, _spread, shortened
from synthesizer_attention.report.summary import scope
from synthesizer_attention.report.tables import cells, in_bytes, search_table, trial_table
from synthesizer_attention.report.write import html_of, lead, sections, summarize_all, text_of
from synthesizer_attention.run.recipe import dump, load_recipe
from synthesizer_attention.study import stats

DASH = "\N{EN DASH}"
RELATIVE, EQUAL = "sinusoidal+relative", "equal_qk_init=true"


def attention(rng, *, mixture, layers=2, heads=3, length=7):
    arrays = {
        "edges": np.linspace(-6.0, 0.0, 49),
        "decoder.map": rng.integers(0, 256, (layers, heads, length, length)).astype(np.uint8),
        "decoder.sharpness": rng.random((layers, heads)),
        "decoder.histogram": rng.integers(0, 50, (2, layers, 48)),
        "decoder.layers": np.arange(layers),
    }
    if mixture:
        first = rng.random((layers, heads, 1))
        arrays["decoder.alphas"] = np.concatenate([first, 1 - first], -1)
    return arrays


def make_run(path, spec, seed, share, *, recipe="shift", finished=True, sets=(),
             commit="0123abc" * 6, told=None, lines=None):  # fmt: skip
    """A run whose model got a share of 2,000 test examples right."""
    path.mkdir(parents=True)
    loaded = load_recipe(recipe, synthesis=spec, overrides=[f"seed={seed}", *sets])
    (path / "recipe.toml").write_text(dump(loaded))
    steps = range(50, 301 if finished else 151, 50)
    logged = [{"step": step, "loss": 3 - step / 200, "lr": 1e-3} for step in steps]
    logged.append({"step": steps[-1], "validation": {"token_accuracy": 100 * share}})
    written = "".join(json.dumps(line) + "\n" for line in lines or logged)
    (path / "metrics.jsonl").write_text(written)
    if not finished:
        return path
    rng = np.random.default_rng(seed)
    rows = np.column_stack([rng.permutation(np.arange(2000) < share * 2000), np.ones(2000)])
    np.savez(path / "statistics.npz", token_accuracy=rows)
    if spec != "none":
        np.savez(path / "attention.npz", **attention(rng, mixture="+" in spec))
    text = f"source: a <b> & c\nreference: two\nlines\noutput: {spec} says {seed}\n"
    (path / "samples.txt").write_text(text)
    result = {
        "synthesis": spec,
        "seed": seed,
        "recipe_hash": loaded.hash(),
        "main_metric": "token_accuracy",
        "higher_is_better": True,
        "metrics": {"token_accuracy": score("token_accuracy", rows), "loss": 1.0},
        "signatures": {"token_accuracy": "positions|v1"},
        "parameters": {"total": 51_200},
        "flops_per_token": 109_440.0,
        "training_tokens_per_second": 1000.0 * len(spec),
        "decoding_tokens_per_second": None if spec == "none" else 100.0 * len(spec),
        "training_memory_bytes": 2**24,
        "device": "cpu",
        "threads": 1,
        "sharpness": {} if spec == "none" else {"decoder": 0.5},
        "steps_per_token": {"decoder": 1.75} if spec == "dense" else None,
        "data": {
            "origin": "built-in shift",
            "bigram": {"validation": 1.0, "test": 12.345},
            "bag_of_words": {"validation": 1.0, "test": 3.21},
        },
        "commit": commit,
        "versions": {"synthesizer": "0.1.0", "torch": "2.13.0"},
    }
    (path / "result.json").write_text(json.dumps(result | (told or {})))
    return path


def make_study(home):
    """Three seeds of five rows; one row failed, one is half-way, one run is broken."""
    shares = {"dot": 0.9, "random": 0.9, "dense": 0.4, "random+dot": 1.0, "none": 0.1}
    rows = []
    for spec, share in shares.items():
        runs = [f"{spec}/seed{seed}" for seed in (1, 2, 3)]
        for seed, run in enumerate(runs, start=1):
            make_run(home / run, spec, seed, share)
        rows.append({"label": spec, "spec": spec, "runs": runs, "error": None, "note": None})
    make_run(home / "fixed_random/seed1", "fixed_random", 1, 0.5, finished=False)
    broken = make_run(home / "fixed_random/seed2", "fixed_random", 2, 0.5)
    (broken / "result.json").write_text('{"metrics": {')
    (broken / "statistics.npz").write_bytes(b"no zip")
    halves = ["fixed_random/seed1", "fixed_random/seed2", "fixed_random/seed3"]
    rows.append({"label": "fixed_random", "spec": "fixed_random", "runs": halves})
    rows.append({"label": "wide", "spec": "dot", "runs": [], "error": "out of <memory>"})
    rows[3]["note"] = "d_ff 99"
    study = {
        "command": "synthesizer compare shift --seeds 3",
        "recipe": "shift",
        "rows": rows,
        "margin": None,
        "match": "params",
        "tune": 0,
        "chosen_for": "dot",
        "a key of a later version": 1,
    }
    (home / "study.json").write_text(json.dumps(study))
    make_run(home / "trials/lr1", "dot", 0, 0.1)
    return home


def made(home, rows, *, commits=None, row=None, **facts):
    """A study of rows (label, spec, seeds, share, what else make_run takes), and what it says."""
    listed = []
    for number, (label, spec, seeds, share, *how) in enumerate(rows):
        runs = [f"{number}/seed{seed}" for seed in seeds]
        for seed, run in zip(seeds, runs, strict=True):
            given = {"commit": (commits or {}).get(seed, "c"), **(how[0] if how else {})}
            make_run(home / run, spec, seed, share, **given)
        own = row(label) if row else {}
        listed.append({"label": label, "spec": spec, "runs": runs, **own})
    (home / "study.json").write_text(json.dumps({"rows": listed, "recipe": "shift", **facts}))
    (summary,) = summarize_all([home])
    return summary, "\n".join(notes(summary))


PAIR = [("dot", "dot", (1, 2, 3), 0.9), ("random", "random", (1, 2, 3), 0.9)]
SIDES = {"dot": 0.9, "dense": 0.905, "random": 0.895, "dense+dot": 0.892, "none": 0.1}


def test_a_newer_study_says_behind_and_on_which_side_of_dot_a_row_is(tmp_path):
    """All of an interval below zero, but not all beyond the margin of one point, is behind."""
    rows = [(spec, spec, (1, 2, 3), share) for spec, share in SIDES.items()]
    summary, said = made(tmp_path / "a", rows, rule="graph", primary="dense")
    words = {line.row.label: tables._verdict(line) for line in summary.lines if line.comparison}
    assert words.pop("none") == "worse"
    assert re.fullmatch(r"behind\nP\(within the margin\) \d\d%", words.pop("dense+dot"))
    assert words == {
        "dense": "better\nahead within the margin",
        "random": "no worse\nbehind within the margin",
    }
    assert "behind where all of it is worse than zero" in said
    assert "The primary row is dense, named before the first run" in said
    assert "more seeds" not in said
    assert "P(within the margin) is the chance" in said
    text = text_of([summary])
    assert "behind: behind, and by how much is open." in text
    assert "behind; P\\(within the margin\\)" in text or "behind; P(within the margin)" in text
    assert ">behind" in plots.forest(summary)

    older, said = made(tmp_path / "b", rows)
    words = {line.row.label: tables._verdict(line) for line in older.lines if line.comparison}
    assert words["dense+dot"] == "undecided"
    assert words["random"] == "no worse"
    assert "behind" not in said
    assert "primary" not in said

    again = ("dot, other seeds", "dot", (1001, 1002, 1003), 0.9)
    rows[0] = ("dot", "dot", range(1, 8), 0.9)
    near = [(f"{spec}, relative", spec, (1, 2, 3), 0.9) for spec in ("random", "dense")]
    _, said = made(tmp_path / "c", [*rows, *near, again], rule="graph", primary="dense")
    assert "so it has more seeds: 10, 3 of them the A/A row's, where a row has up to 3." in said
    assert "dot and the 5 rows near it counts as 2 further degrees of freedom of each but" in said


def test_rows_that_are_all_behind_say_so(tmp_path):
    rows = [("dot", "dot", (1, 2, 3), 0.9), ("random", "random", (1, 2, 3), 0.892)]
    one, _ = made(tmp_path / "a", rows, rule="graph", quick=True)
    assert one.answer == (
        "Undecided: on shift at this budget the one row without dot product is behind dot; whether "
        "by more than the margin is open for random (margin 1 point of token accuracy)."
    )
    two, _ = made(tmp_path / "b", [*rows, ("dense", "dense", (1,), 0.9)], rule="graph")
    assert "are needed for dense; random is behind dot (margin" in two.answer
    close = [rows[0], ("random", "random", (1, 2, 3), 0.8995), ("none", "none", (1, 2, 3), 0.5)]
    three, _ = made(tmp_path / "c", close, rule="graph", margin=0.08)
    assert "needed for random; random is within the margin of dot with a prob" in three.answer
    assert "%, and self-attention itself is needed (none is worse) (margin" in three.answer


@pytest.mark.parametrize(
    ("floor", "said"),
    [
        (88.9, None),
        (89.5, "A bag of words is level with dot (89.50 beside 90.00, margin 1 point of token"),
        (92.0, "A bag of words is ahead of dot (92.00 beside 90.00, margin 1 point of token"),
    ],
)
def test_the_answer_begins_with_a_floor_that_dot_does_not_leave_behind(tmp_path, floor, said):
    data = {"data": {"bag_of_words": {"test": floor}, "bigram": {"test": 12.0}}}
    rows = [(*row, {"told": data}) for row in PAIR]
    summary, _ = made(tmp_path, rows)
    first = summary.answer.partition(". No: on shift random is no worse")[0]
    if said:
        assert first == f"{said} accuracy): these data do not show a need for attention"
    else:
        assert summary.answer.startswith("No: on shift random")
    assert f">{'a bag of words'}<" in plots.forest(summary)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """What the verb writes and says of a study."""
    home = make_study(tmp_path_factory.mktemp("study") / "shift")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(["report", str(home)]) == 0
    names = {"html": "report.html", "md": "report.md", "csv": "table.csv"}
    texts = {kind: (home / name).read_text() for kind, name in names.items()}
    (summary,) = summarize_all([home])
    return SimpleNamespace(home=home, summary=summary, said=said.getvalue(), **texts)


def test_the_answer_and_every_verdict_are_told(study):
    answer = (
        "No: on shift random is no worse than dot product (margin 1 point of token accuracy); "
        "random+dot is better than dot."
    )
    told = {
        line.row.label: (line.index, line.comparison and line.comparison.word)
        for line in study.summary.lines
    }
    assert list(told.items()) == [  # best first; colours stay those of the rows' order
        ("random+dot", (3, "better")),
        ("dot", (0, None)),
        ("random", (1, "no worse")),
        ("dense", (2, "worse")),
        ("none", (4, "worse")),
        ("fixed_random", (5, None)),
        ("wide", (6, None)),
    ]
    *_, last, advice, path = study.said.splitlines()
    assert advice.startswith("Which should I use? Best: random+dot")
    assert last == f"Does shift need dot-product attention? {answer}"
    assert path == str(study.home / "report.html")
    floor = "Without any network, {} (token accuracy, %) on the same examples."
    for said in (
        answer,
        "cross-attention, where a model has any, is dot product in all of them",
        "synthesizer compare shift --seeds 3",
        "learning rates, which were chosen for dot",
        "all variants have the same parameters",
        floor.format("an interpolated bigram model of train has 12.35"),
        floor.format("logistic regression on the tokens of a text, in whatever order, has 3.21"),
    ):
        assert said in study.html
        assert said in study.md


def test_failed_and_partial_rows_are_shown_with_what_is_known(study):
    states = {line.row.label: line.state for line in study.summary.lines}
    assert states["wide"] == "failed: out of <memory>"
    assert states["fixed_random"] == (
        "seed 1 stopped at step 150 of 500; seed 2 unreadable result.json (JSONDecodeError)"
    )
    head, rows = cells(study.summary)
    told = {row[0].split("\n")[1]: row[head.index("steps per token")] for row in rows}
    assert (told["dense"], told["dot"]) == ("1.75", DASH)
    assert "trials/lr1" not in study.html, "a run that study.json does not list is in no row"


def test_the_page_has_every_part_and_fetches_nothing(study):
    html = study.html
    assert re.findall(r"<h2>(.*?)</h2>", html) == [
        "Results", "Learning curves", "Attention maps", "Distribution of attention weights",
        "Mixture weights", "Samples", "Reproduce", "Terms",
    ]  # fmt: skip
    assert len(re.findall(r'<svg role="img" aria-label="(.*?)"', html)) == 2 + 2 + 4 + 4 + 1
    for said in (
        "a &lt;b&gt; &amp; c", "random+dot says 1", "two \N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"
        " lines", "Greedy decoding with a cache", "commit: 0123abc0123abc", "torch 2.13.0",
        "seeds: 1; 2; 3", "positions|v1", "@inproc", "out of &lt;memory&gt;", "d_ff 99",
    ):  # fmt: skip
        assert said in html
    links = []
    parser = HTMLParser()
    names = ("src", "href", "xlink:href", "srcset", "action", "data", "poster")
    parser.handle_starttag = lambda _, attrs: links.extend(v for n, v in attrs if n in names)
    parser.feed(html)
    assert links
    assert all(link.startswith(("data:", "#")) for link in links)
    assert not re.search(r"https?://|@import|url\((?!#)", html)


def test_plots_are_drawn_in_the_colours_of_the_page(study):
    assert "prefers-color-scheme: dark" in study.html
    svgs = "".join(re.findall(r"<svg.*?</svg>", study.html, re.S))
    assert set(re.findall(r"#[0-9a-f]{6}\b", svgs)) <= {"#ffffff", "#000000"}
    assert all(f"{name}:" in study.html for name in re.findall(r"var\((--\w+)\)", study.html))


def test_headings_explain_themselves(study):
    heading = re.search(r'<th scope=col title="(1 - entropy[^"]*)"><button>sharpness', study.html)
    assert "A table near 0 was not learned" in heading[1]
    for anchor in re.findall(r'<a href="#([\w-]+)"', study.html):
        assert study.html.count(f'id="{anchor}"') == 1
    assert "- sharpness: 1 - entropy" in study.md


@pytest.mark.skipif(browser.PATH is None, reason="no Chromium is installed")
def test_a_browser_opens_the_page_without_a_complaint_and_sorts_its_table(study, tmp_path):
    """It asks for nothing but the file, and does not scroll sideways, be it on a phone."""
    names = "[...document.querySelectorAll('table')[0].tBodies[0].rows].map(r => r.innerText)"
    first = f"{names}.map(text => text.split('\\n')[1]).join()"
    button = "[...document.querySelectorAll('th button')].find(b => b.innerText == '{}')"
    click = f"{button.format('training, tokens/s')}.click(); {first}"
    file = study.home / "report.html"
    verdict = "[...document.querySelectorAll('td')].find(d => d.innerText == 'better')"
    edge = f"{verdict}.getBoundingClientRect().right"
    for width, scheme, ask in ((390, "dark", (edge,)), (1400, "light", (first, click, click))):
        seen = browser.look(file, tmp_path, width=width, scheme=scheme, ask=ask)
        assert "Does shift need dot-product attention?" in seen.text
        assert seen.complaints == []
        assert {url for url in seen.requests if not url.startswith("data:")} == {file.as_uri()}
        assert seen.width <= width
        if width == 390:
            assert seen.answers[0] <= width, "the verdict is seen without scrolling sideways"
    by_result, fastest, slowest = (answer.split(",") for answer in seen.answers)
    assert by_result[0].startswith("random+dot")
    assert [name.split("\t")[0] for name in fastest[:2]] == ["random+dot", "random"]
    assert slowest[0].startswith("dot")


def test_paragraphs_fold_behind_their_first_sentence_on_a_page_alone(study):
    assert (
        "<summary>Differences are row minus dot over shared seeds.</summary><p>A ver" in study.html
    )
    assert "\nDifferences are row minus dot over shared seeds. A verdict follows" in study.md


def test_a_box_says_which_row_to_use_and_what_it_saves(tmp_path):
    cheap, dear = ({"flops_per_token": f, "parameters": {"total": 40_960}} for f in (5.0, 9.0))
    three = (1, 2, 3)
    rows = [
        ("dot", "dot", three, 0.9),
        ("random", "random", three, 0.9, {"told": cheap}),
        ("dense", "dense", three, 0.9, {"told": dear}),
        ("random+dot", "random+dot", three, 0.95),
    ]
    both, _ = made(tmp_path / "a", rows)
    fast = [f"{key} {{0}}\N{MULTIPLICATION SIGN} as fast" for key in ("training", "decoding")]
    speeds = ", ".join(fast)
    assert f'<p class="box">{tables.advice(both)}</p>' in html_of([both])
    assert tables.advice(both) == (
        "Which should I use? Best: random+dot, token accuracy 95.00 (better): as many parameters, "
        f"{speeds.format('3.33')}. "
        "Cheapest: random, token accuracy 90.00 (no worse): 20% fewer parameters, "
        f"{speeds.format('2.00')}. "
        "All beside dot, token accuracy 90.00."
    )
    none, _ = made(tmp_path / "b", [rows[0], ("random", "random", three, 0.4)])
    assert tables.advice(none).endswith("no other row is known to keep up with it.")
    few, _ = made(tmp_path / "c", [(*row[:2], (1,), row[3]) for row in rows])
    assert tables.advice(few) == ""


def test_maps_have_the_tokens_on_their_axes_and_the_sentence_above(tmp_path):
    summary, _ = made(tmp_path, PAIR)
    assert "variants.</p>" in html_of([summary]), "older runs kept no tokens"
    file = tmp_path / "0/seed1/attention.npz"
    words = ["a", " <b>", " cat", " $x", " \N{SNOWMAN}", ".", "</s>"]
    kept = np.frombuffer("".join(f"{word}\0" for word in words).encode(), dtype=np.uint8)
    np.savez(file, **np.load(file), **{"decoder.tokens": kept})
    (summary,) = summarize_all([tmp_path], verify=False)
    page = html_of([summary])
    assert "the same for all variants: a &lt;b&gt; cat $x \N{SNOWMAN}.&lt;/s&gt;." in page
    (drawn,) = [svg for svg in re.findall(r"<svg.*?</svg>", page, re.S) if "by token" in svg]
    assert drawn.count(">cat<") == drawn.count(">&lt;b&gt;<") == 2


def test_samples_are_those_that_rows_disagree_on(tmp_path):
    summary, _ = made(tmp_path, PAIR)
    for row, last in ((0, "yes"), (1, "no")):
        told = [f"source: {n}\noutput: {last if n == 4 else 'same'}\n" for n in range(6)]
        (tmp_path / f"{row}/seed1/samples.txt").write_text("\n".join(told))
    (table,) = next(
        one for one in sections(summary, drawn=False) if one.heading == "Samples"
    ).blocks
    assert table.head == ["", "example 5", "example 1", "example 2"]
    assert [row[1] for row in table.rows] == ["4", "", "yes", "no"]


def test_the_csv_keeps_numbers_unrounded(study):
    rows = {row["row"]: row for row in csv.DictReader(study.csv.splitlines())}
    assert float(rows["dense"]["difference"]) == pytest.approx(-50)
    assert float(rows["dense"]["low"]) < -50 < float(rows["dense"]["high"])
    assert (rows["random"]["verdict"], rows["random"]["seeds"]) == ("no worse", "3")
    assert (rows["wide"]["mean"], rows["wide"]["remarks"]) == ("", "failed: out of <memory>")
    relative = [float(rows["random"][f"{name}_relative"]) for name in ("training", "decoding")]
    assert relative == [2, 2]
    assert (rows["none"]["decoding"], rows["none"]["memory"]) == ("", str(2.0**24))


def test_a_report_needs_no_torch(tmp_path):
    make_run(tmp_path / "a", "dot", 1, 0.9)
    script = (
        "import sys; from synthesizer_attention.report.write import write_report\n"
        f"write_report([{str(tmp_path)!r}])\n"
        "print(sorted({'torch', 'transformers', 'matplotlib.pyplot'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_long_curve_is_thinned_and_keeps_its_spikes(tmp_path):
    losses = np.full(30_000, 2.0) + np.arange(30_000) % 7 / 10
    losses[12_345] = 90.0
    lines = [{"step": step, "loss": loss} for step, loss in enumerate(losses, start=1)]
    make_run(tmp_path / "dot", "dot", 1, 0.9, lines=lines)
    (summary,) = summarize_all([tmp_path])
    loss, validation, _ = plots.learning_curves(summary)
    assert len(loss.svg) < 200_000
    assert "step (thinned to 2,000 points, extremes kept)" in loss.svg
    assert ">80<" in loss.svg, "the axis reaches the one step of 90"
    assert validation.svg == ""


def test_plots_have_room_for_the_best_rows_and_the_table_for_all(tmp_path, monkeypatch):
    """A hundred names beside a plot left no room for its axes, which warned and drew nothing."""
    monkeypatch.setattr("synthesizer_attention.report.summary.MOST_DRAWN", 3)
    rows = [("dot", "dot", (1,), 0.1)]
    rows += [(f"k={k}", f"factorized_random:k={k}", (1,), 0.2 + k / 100) for k in range(1, 6)]
    summary, _ = made(tmp_path, rows)
    assert [line.row.label for line in summary.drawn] == ["k=5", "k=4", "dot"]
    html = page("", [], lead(summary))
    assert "Plots show the best 3; 3 more are in the table." in html
    assert "intervals over test examples alone, as there are too few seeds" in html
    assert [row[0] for row in cells(summary)[1]][:2] == [
        "Factorized Random\nk=5", "Factorized Random\nk=4",
    ]  # fmt: skip
    assert len(cells(summary)[1]) == 6


def test_many_studies_have_plots_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr("synthesizer_attention.report.write.MOST_DRAWN", 1)
    for number in range(2):
        make_run(tmp_path / str(number), "dot", 1, 0.5, sets=[f"train.lr={number + 1}"])
    html = html_of(summarize_all([tmp_path]))
    assert "Plots are drawn for the first 1 of 2 studies" in html
    assert html.count(": Learning curves</h2>") == 1
    assert html.count(": Results</h2>") == html.count(": the answer</h2>") == 2


def test_what_was_tried_for_each_row_is_shown_best_first(tmp_path):
    trials = [
        {"changes": ["train.lr=0.1", "train.table_rate=30"], "validation": None},
        {"changes": ["train.lr=0.01", "train.table_rate=30"], "validation": 51.25},
        {"changes": ["train.lr=0.02", "train.table_rate=5"], "validation": 60.5},
    ]
    dot = [("dot", "dot", (1,), 0.9)]
    summary, _ = made(tmp_path, dot, row=lambda _: {"trials": trials}, tune=3)
    text = text_of([summary])
    assert "Every variant had 3 trials of learning rate and table rate" in text
    first, second = f"0.02 | 5 | {DASH} | 60.50 | chosen", f"0.01 | 30 | {DASH} | 51.25 | "
    assert f"| dot | {first} |\n| dot | {second} |" in text
    assert f"| dot | 0.1 | 30 | {DASH} | failed |  |" in text
    assert "| dot | inside | 55.88 | 55.88 | 60.50 |" in text
    untuned = replace(summary.study, facts={**summary.study.facts, "tune": 0})
    assert "best learning rate" not in text_of([replace(summary, study=untuned)])


def test_results_of_an_older_version_are_read_and_their_memory_is_named_as_what_it_is(tmp_path):
    for spec in ("dot", "random"):
        run = make_run(tmp_path / spec, spec, 1, 0.9)
        result = json.loads((run / "result.json").read_text())
        del result["decoding_tokens_per_second"], result["training_memory_bytes"]
        result |= {"generation_tokens_per_second": None, "peak_memory_bytes": 2**29}
        (run / "result.json").write_text(json.dumps(result))
    text = text_of(summarize_all([tmp_path]))
    assert "peak memory of the process, libraries included" in text
    assert "512 MiB" in text
    assert "peak memory of a training step" not in text
    assert "decoding, tokens/s" not in text


def test_runs_without_a_study_are_grouped_by_recipe(tmp_path):
    make_run(tmp_path / "deep/down/a", "R", 1, 0.9)
    make_run(tmp_path / "b", "dot", 1, 0.9)
    make_run(tmp_path / "c", "dot", 1, 0.9, sets=["train.steps=9"])
    first, second = summarize_all([tmp_path, tmp_path / "b"])
    assert [line.row.label for line in first.lines] == ["dot", "random"]
    assert first.study.name == "shift (train.steps=500)"
    assert second.study.name == "shift (train.steps=9)"
    assert first.answer == (
        "No verdict on shift (train.steps=500) from 1 seed shared with dot; 3 give one. "
        "So far the best row without dot product is random, equal to dot."
    )


def test_runs_that_began_with_their_own_pretrained_twins_are_one_table(tmp_path):
    """Split by what they began with, no two of them made a pair."""
    for spec in ("dot", "random"):
        for seed in (1, 2):
            before = f"train.start_from=runs/pretrained/{spec}/seed{seed}"
            make_run(tmp_path / f"{spec}{seed}", spec, seed, 0.9, sets=[before])
    make_run(tmp_path / "other", "random", 1, 0.9, sets=["train.start_from=runs/elsewhere"])
    grouped = [
        [(line.row.label, len(line.row.runs)) for line in summary.lines]
        for summary in summarize_all([tmp_path])
    ]
    assert grouped == [[("dot", 2), ("random", 2)], [("random", 1)]]


def test_runs_that_have_only_begun_are_reported_and_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no run below .*; a run directory holds a recipe\.toml"):
        summarize_all([tmp_path])
    with pytest.raises(
        UserError,
        match="is not a directory; name run directories, one that contains some, or a packed",
    ):
        summarize_all([tmp_path / "missing"])
    make_run(tmp_path / "a", "dot", 1, 0.9, finished=False)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/recipe.toml").write_text("name = ")
    html = html_of(summarize_all([tmp_path]))
    assert "stopped at step 150 of 500" in html
    assert "unreadable recipe.toml (TOMLDecodeError)" in html
    (tmp_path / "study.json").write_text("[]")
    with pytest.raises(UserError, match=r"study\.json is not the record .*; restore it"):
        summarize_all([tmp_path])


def test_a_run_that_diverged_does_not_spoil_the_page(tmp_path):
    lost = {"told": {"metrics": {"token_accuracy": float("nan")}}}
    summary, _ = made(tmp_path, [PAIR[0], (*PAIR[1], lost)])
    assert summary.lines[1].comparison.word == "not judged"
    assert "token accuracy" in page("", [], lead(summary))


def test_published_numbers_stand_apart(tmp_path):
    make_run(tmp_path / "a", "dot", 1, 0.9, recipe="listops")
    text = text_of(summarize_all([tmp_path]))
    assert text.index("## Results") < text.index("Published results") < text.index("36.99")
    assert "Numbers of others, at their scale" in text


def test_a_score_far_below_the_others_leaves_them_room():
    edge = plots.lower_edge
    assert edge([2.0, 1.9, 1.8, 1.0]) == pytest.approx(1.74)  # three tenths below 1.8
    assert edge([2.0, 1.9, 1.8, 1.5, -9.0]) == pytest.approx(1.35), "1.5 has room"
    assert edge([2.0, 1.9, 1.8, 1.5]) == 1.5
    assert edge([2.0, 1.99, 1.99, 1.95], 0.1) == 1.95, "no farther than seeds lie apart"
    assert edge([2.0, 1.9, -9.0]) == -9.0, "too few to tell"
    assert edge([2.0, 2.0, 2.0, 1.0]) == 1.0, "the others are one point"
    assert plots.pareto([(1, 1), (2, 0), (0, 2), (1, 0), (1, 1)]) == {0, 1, 2, 4}


def test_names_beside_a_plot_do_not_overlap_and_keep_their_ends():
    even = list(np.linspace(0, 1, 12))
    for heights in ([0.5] * 4, [0.99, 1.0, 1.0], [0.0, 0.0, 0.9], [0.9] * 16, even):
        placed = _spread(sorted(heights))
        assert min(b - a for a, b in pairwise(placed)) > 0.0749
        assert min(placed) >= 0
    assert _spread([0.2, 0.21, 0.9]) == pytest.approx([0.1675, 0.2425, 0.9])
    names = ["dot", f"dot, {RELATIVE}", f"dot, {RELATIVE}, {EQUAL}", f"random, {RELATIVE}"]
    short = [shortened(name) for name in names]
    assert short[0] == "dot"
    assert len(set(short)) == len(names)
    assert {len(text) for text in short[1:]} == {LONGEST}


def test_points_are_named_by_their_looks_and_not_by_lines(tmp_path, monkeypatch):
    """Lines from close points to their names crossed in a bundle."""
    figures = []
    monkeypatch.setattr(plots, "to_svg", lambda figure, title: figures.append(figure) or "")
    close = "dot", "random", "dense", "relative", "random+dot", "dense+dot", "fixed_random"
    for number, spec in enumerate(close):
        make_run(tmp_path / spec, spec, 1, 0.5 + number / 1000)
    (summary,) = summarize_all([tmp_path])
    plots.quality_and_speed(summary)
    (axes,) = figures[0].axes
    (front,) = (line for line in axes.lines if line.get_marker() == "None")
    assert front.get_drawstyle() == "steps-pre"
    looks = Counter((line.get_marker(), line.get_color()) for line in axes.lines if line != front)
    assert [*looks.values()] == [2] * len(close), "each look is that of one point and one name"
    assert [text.get_text() for text in axes.texts] == [line.row.label for line in summary.lines]


def test_another_tool_can_wrap_its_sections():
    html = page("A <title>", [Section("One", [Text("a < b")])], [Text("lead")])
    assert "<h1>A &lt;title&gt;</h1>" in html
    assert "<p>lead</p>" in html
    assert "<h2>One</h2>\n<p>a &lt; b</p>" in html


def test_a_cache_of_bytes_is_not_rounded_to_nothing():
    shown = [in_bytes(value) for value in (None, 0, 512, 24_576, 11 * 2**20)]
    assert shown == [DASH, "0 B", "512 B", "24 KiB", "11 MiB"]


def test_a_metric_added_from_outside_is_scored_judged_and_shown(tmp_path, monkeypatch):
    """Its line in METRICS is all that a report and a verdict need."""
    half = Metric(lambda total: float(50 * total[0] / total[1]), "half accuracy, %", margin=0.25)
    monkeypatch.setitem(METRICS, "half", half)
    made(tmp_path, [PAIR[0], ("dense", "dense", (1, 2, 3), 0.4)])
    for file in tmp_path.rglob("result.json"):
        result = json.loads(file.read_text())
        result["metrics"]["half"] = result["metrics"]["token_accuracy"] / 2
        file.write_text(json.dumps(result))
        arrays = dict(np.load(file.with_name("statistics.npz")))
        np.savez(file.with_name("statistics.npz"), **arrays, half=arrays["token_accuracy"])
    (summary,) = summarize_all([tmp_path])
    assert tables.metric_tables(summary) is None, "one metric needs no table of its own"
    monkeypatch.setitem(tables.COLUMNS, "probe", {"all": ("token_accuracy",)})
    means, (_, differences) = tables.metric_tables(summary)
    assert means[0] == ["variant", "all", "half accuracy, %"]
    assert [cell.rpartition(", ")[2] for cell in differences[0]] == ["dense", "worse", "worse"]
    assert stats.allowed("half", stats.Measured("dot", {1: 90.0}, {})) == 0.25
    mains = "bleu", "bleu4", "rougeL", "perplexity", "bits_per_byte", "accuracy", "token_accuracy"
    assert set(mains) <= set(METRICS)


def test_dot_that_differs_from_itself_voids_the_table(tmp_path):
    again = ("dot, other seeds", "dot", (11, 12, 13))
    summary, told = made(tmp_path / "void", [*PAIR, (*again, 0.5)])
    assert summary.lines[1].comparison.word == "void"
    assert "A/A check" in summary.answer
    assert "THE TABLE IS VOID: dot under other seeds is called worse than dot (-40.00)" in told
    summary, told = made(tmp_path / "sound", [*PAIR, (*again, 0.9)])
    assert summary.lines[1].comparison.word == "no worse"
    assert "against dot (+0.00), as it should be." in told
    assert "A/A check: none" in made(tmp_path / "none", PAIR)[1]


def test_the_plot_of_differences_names_the_dot_they_are_from(tmp_path):
    """A row called dot may be another one; and two numbers of an axis tell how far rows are."""
    rows = [PAIR[0], ("random", "random", (1, 2, 3), 0.5)]
    alone, _ = made(tmp_path / "alone", rows)
    assert "difference from dot, token accuracy" in plots.forest(alone)
    other = ("dot, relative", "dot", (1, 2, 3), 0.95)
    named = {"label": "dot, relative", "configured": "dot", "how": "asked for", "trials": []}
    both, _ = made(tmp_path / "both", [*rows, other], opponent=named)
    drawn = plots.forest(both)
    assert "difference from dot, relative" in drawn
    assert ">+2<" in drawn  # twice the margin, where the axis turns logarithmic
    assert ">+50<" in drawn
    assert ">+30<" not in drawn


@pytest.mark.parametrize(("share", "told"), [(0.9, True), (0.5, False)])
def test_a_row_without_attention_that_nothing_beats_is_named(tmp_path, share, told):
    rows = [("dot", "dot", (1, 2), 0.9), ("none", "none", (1, 2), share)]
    assert ("NO ROW BEATS THE ONE WITHOUT SELF-ATTENTION: none" in made(tmp_path, rows)[1]) == told


@pytest.mark.parametrize(("worth", "reads"), [((0.02, 0.04), False), ((0.02, 0.3), True)])
def test_rows_that_do_not_read_their_source_are_named(tmp_path, worth, reads):
    keys = "worth_of_source", "source_gap"  # the older name, and today's
    rows = [
        (name, name, (1, 2), 0.9, {"told": {key: value}})
        for name, key, value in zip(("dot", "random"), keys, worth, strict=True)
    ]
    summary, told = made(tmp_path, rows)
    assert ("NO ROW READS ITS SOURCE" in told) != reads
    assert "source gap" in cells(summary)[0]


def test_settings_that_were_measured_are_told(tmp_path):
    trials = [
        {"changes": [], "validation": 71.0, "run": "trials/a"},
        {"changes": ["text.kind=word"], "validation": 80.5, "run": "trials/b"},
    ]
    one = {"choice": "tokenizer", "row": "dot", "trials": trials, "chosen": ["text.kind=word"]}
    _, told = made(tmp_path, PAIR, measured=[one])
    assert (
        "The tokenizer of all variants was chosen by dot on validation (as inferred 71.00; "
        "text.kind=word 80.50): text.kind=word." in told
    )


def test_a_reader_learns_what_to_distrust(tmp_path):
    rows = [("dot", "dot", (1, 2, 3), 0.1), ("random", "random", (1, 2, 3), 0.09)]
    looks = {"planned": [3, 5], "taken": [3]}
    summary, told = made(tmp_path, rows, commits={3: "other"}, looks=looks)
    for said in (
        "NO ROW BEATS A BASELINE WITHOUT A NETWORK: an interpolated bigram model of train has",
        "The runs come from 2 commits (c, other); no seed was run again",
        "up to 63% of all seeds still may",
        "Interim looks were planned at 3, 5 seeds and taken at 3",
        "each of the 2,000 counts as independent",
    ):
        assert said in told
    for run in summary.study.runs:
        stored = dict(np.load(run.path / "statistics.npz"))
        np.savez(run.path / "statistics.npz", **stored, documents=np.arange(2000) // 100)
    (summary,) = summarize_all([tmp_path])
    told = "\n".join(notes(summary))
    assert "FEW TEST DOCUMENTS: the test set counts as 20.0 independent ones, fewer than 30" in told
    assert "counts as independent" not in told


def test_the_main_metric_has_one_interval_in_all_tables(tmp_path, monkeypatch):
    """Looks were planned, so the interval is wider than that of three seeds alone."""
    rows = [(spec, spec, (1, 2, 3), share) for spec, share in (("dot", 0.5), ("random", 0.49))]
    summary, _ = made(tmp_path, rows, looks={"planned": [3, 5], "taken": [3]})
    twice = {summary.study.recipe["task"]: {"one": (summary.metric,), "two": (summary.metric,)}}
    monkeypatch.setattr(tables, "COLUMNS", twice)
    told = {
        line.row.label: tables.difference_and_verdict(line.comparison) for line in summary.lines
    }
    assert tables.metric_tables(summary)[1][1] == [["random", told["random"], told["random"]]]
    assert "[" in told["random"]


def test_speeds_of_unlike_machines_are_not_compared(tmp_path):
    """One row ran on a GPU, another on two kinds of processor: neither stands beside dot."""
    kinds = {"dot": "AA", "random": "AA", "dense": "GG", "none": "AB"}
    for spec, own in kinds.items():
        for seed, kind in enumerate(own, start=1):
            device, processor = ("H100", "A") if kind == "G" else ("cpu", kind)
            told = {"device": device, "processor": processor, "host": f"host-{device}-{processor}"}
            make_run(tmp_path / spec / f"seed{seed}", spec, seed, 0.5, told=told)
    (summary,) = summarize_all([tmp_path])
    relative = {line.row.label: line.relative for line in summary.lines}
    assert relative["random"]["training"] == 2.0
    assert relative["dense"]["training"] is None
    assert relative["none"]["training"] is relative["none"]["decoding"] is None
    assert relative["dense"]["flops"] == 1.0
    text = text_of([summary])
    assert "these runs were made on 3: cpu on A, threads: 1; H100 on A" in text
    assert "host: host-cpu-A; host-H100-A; host-cpu-B" in text


# The dot product that rows are measured by, what it gains, and which gaps still close.

CURVES = {  # validation after one, two and three thirds of the steps
    "dot": (30.0, 40.0, 50.0),
    f"dot, {RELATIVE}": (50.0, 80.0, 90.0),
    "random": (10.0, 20.0, 60.0),
    "dense": (40.0, 75.0, 60.0),
}
TRIALS = [
    {"changes": [], "positions": "sinusoidal", "validation": 51.0},
    {"changes": [f"model.positions={RELATIVE}"], "positions": RELATIVE, "validation": 88.0},
]
CHOSEN = {
    "label": f"dot, {RELATIVE}",
    "configured": "dot",
    "how": "chosen on validation",
    "trials": TRIALS,
}


def opposed(home, opponent, *, candidate=True, curves=CURVES, **facts):
    """Three seeds of each row with curves; scores are the last point of each."""
    rows = []
    for label, curve in curves.items():
        spec, *own = label.split(", ")
        sets = [f"model.{text}" if "=" in text else f"model.positions={text}" for text in own]
        lines = [
            {"step": step, "validation": {"token_accuracy": value}}
            for step, value in zip((100, 200, 300), curve, strict=True)
        ]
        how = {"sets": [*sets, "train.steps=300"], "lines": lines}
        how["told"] = {"validation": {"token_accuracy": curve[-1]}}
        rows.append((label, spec, (1, 2, 3), curve[-1] / 100, how))

    def own_facts(label):
        return {"candidate": candidate and label.startswith("dot")}

    return made(home, rows, row=own_facts, opponent=opponent, **facts)


@pytest.fixture(scope="module")
def opponent(tmp_path_factory):
    home = tmp_path_factory.mktemp("opponent")
    return home, *opposed(home, CHOSEN)


def test_differences_are_against_the_recorded_opponent_and_its_gain_is_named(opponent):
    _, summary, said = opponent
    lines = {line.row.label: line for line in summary.lines}
    assert summary.opponent.label == f"dot, {RELATIVE}"
    assert lines[f"dot, {RELATIVE}"].comparison is None
    assert lines["random"].comparison.difference == pytest.approx(-30.0)
    assert lines["dot"].comparison.word == "worse"
    assert f"against dot, {RELATIVE} ({RELATIVE}; chosen on validation)" in said
    assert f"on validation: sinusoidal 51.00, {RELATIVE} 88.00." in said
    assert f"with {RELATIVE} positions dot gains 40.00 token accuracy" in said
    assert "WEAK" not in said


def test_the_verb_names_the_row_that_dot_means(opponent, tmp_path, capsys):
    assert main(["report", str(opponent[0]), "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    head, *_, answer, _, path = said.out.splitlines()
    assert f"vs dot, {RELATIVE}" in head
    assert answer.endswith(f" Here dot is the row dot, {RELATIVE}.")
    assert path == str(tmp_path / "report.html")
    assert said.err == "writing the report ...\n"
    assert main(["report", str(tmp_path / "missing")]) == 2


def test_a_gap_that_still_closes_makes_a_word_a_word_so_far(opponent):
    _, summary, said = opponent
    lines = {line.row.label: line for line in summary.lines}
    assert lines["random"].gaps == (-40.0, -60.0, -30.0)
    assert lines["random"].is_closing
    assert not lines["dense"].is_closing  # its gap grows in the last third
    assert "So far: random still comes closer to dot." in summary.answer
    assert "still shrinks for random (-40.00, -60.00, -30.00)" in said
    assert "Longer training may change these verdicts." in said
    even = replace(lines["random"].comparison, word="no worse", margin=1.0)
    for word, last, closing in (("no worse", 0.02, False), ("no worse", 0.5, True),
                                ("better", 0.02, True)):  # fmt: skip
        line = replace(lines["random"], comparison=replace(even, word=word), gaps=(48.0, 1.1, last))
        assert line.is_closing == closing  # a closed gap does not close any further


def test_what_else_the_opponent_sets_is_named_beside_its_positions(tmp_path):
    """Two dot products of the same positions were listed as one."""
    label = f"dot, {RELATIVE}, {EQUAL}"
    tried = [
        {**TRIALS[1], "row": row, "changes": [], "validation": value}
        for row, value in ((f"dot, {RELATIVE}", 88.0), (label, 93.0))
    ]
    chosen = {**CHOSEN, "label": label, "trials": [TRIALS[0], *tried]}
    summary, said = opposed(tmp_path, chosen, curves={**CURVES, label: (60.0, 90.0, 95.0)})
    assert summary.opponent.label == label
    assert "Its settings were searched" in said
    assert f"sinusoidal 51.00, {RELATIVE} 88.00, {RELATIVE}, {EQUAL} 93.00." in said
    assert f"with {RELATIVE} positions and {EQUAL} dot gains 45.00 token accuracy" in said


def test_without_a_recorded_opponent_the_best_candidate_on_validation_is_taken(tmp_path):
    best, unknown = f"dot, {RELATIVE}", {**CHOSEN, "label": None}
    curves = {label: CURVES[label] for label in ("dot", best)}
    for number, (record, candidate, label) in enumerate(
        [(None, True, best), (unknown, True, best), (None, False, "dot")]
    ):
        home = tmp_path / str(number)
        summary, _ = opposed(home, record, candidate=candidate, curves=curves)
        assert summary.opponent.label == label
    with pytest.raises(UserError, match="opponent: Input should be an object"):
        opposed(home, ["broken"], curves={})


def test_sinusoids_are_called_weak_unless_they_won_a_search(tmp_path):
    curves = {label: CURVES[label] for label in ("dot", "random")}  # what lost it is not a row
    _, said = opposed(tmp_path / "won", {**CHOSEN, "label": "dot"}, curves=curves)
    assert "against dot (sinusoidal; chosen on validation)" in said
    assert "WEAK" not in said
    summary, said = made(tmp_path / "alone", PAIR)
    assert "THE OPPONENT MAY BE WEAK: dot is compared with sinusoidal positions alone." in said
    assert search_table(summary)[1] == []


def test_both_seeds_of_a_search_are_shown_and_the_rule_that_chose_is_named(opponent):
    low, high = ["train.lr=0.1", "train.table_rate=3"], ["train.lr=0.2", "train.table_rate=2"]
    trials = [
        {"changes": changes, "validation": value, "seed": seed}
        for changes, value, seed in (
            (low, 60.0, 0), (high, 64.0, 0), (low, 61.0, 100_000), (high, 55.0, 100_000),
        )
    ]  # fmt: skip
    beaten = [{**trial, "row": "dot, rotary", "positions": "rotary"} for trial in trials]
    summary = opponent[1]
    lines = tuple(
        replace(line, row=replace(line.row, trials=tuple(trials)))
        if line.row.spec == "random"
        else line
        for line in summary.lines
    )

    def searched(**search):
        facts = {"opponent": {**CHOSEN, "trials": beaten}, "tune": 2, **search}
        return replace(summary, lines=lines, study=replace(summary.study, facts=facts))

    twice = searched(search={"repeated": 2})
    head, rows = trial_table(twice)
    assert head[-4:] == ["validation token accuracy, %", "second seed", "mean", ""]
    assert rows[0] == ["random", "0.1", "3", DASH, "60.00", "61.00", "60.50", "chosen"]
    assert rows[1] == ["random", "0.2", "2", DASH, "64.00", "55.00", "59.50", ""]
    assert [row[0::7] for row in rows[2:]] == [["dot, rotary", "its best"], ["dot, rotary", ""]]
    said = "\n".join(notes(twice))
    assert "its best 2 again under a second one; it uses those with the best mean" in said
    assert (
        "searched with two seeds of its own (the mean decides), on validation: rotary 60.5" in said
    )
    assert "One seed chose, which is not reported" in "\n".join(notes(searched()))


# Varied values: an answer, a column and a point for each.

SHARES = {  # of right answers, by difficulty: a table lasts as long as its heads
    "dot": {"2": 0.99, "8": 0.98},
    "random": {"2": 0.99, "8": 0.4},
    "random+dot": {"2": 0.99, "8": 0.98},
}


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    rows = []
    for spec, shares in SHARES.items():
        told = {"cache_bytes_per_token": 512 if spec == "random" else 1024}
        for value, share in shares.items():
            sets = (f"data.difficulty={value}",)
            how = {"recipe": "distance-copying", "sets": sets, "told": told}
            rows.append((f"{spec}, difficulty {value}", spec, (1, 2, 3), share, how))

    def own(label):
        return {"varied": [f"data.difficulty={label[-1]}"]}

    home = tmp_path_factory.mktemp("probe")
    return made(home, rows, row=own, recipe="distance-copying")


def test_every_varied_value_has_an_answer_of_its_own(probe):
    summary, told = probe
    assert summary.answer.startswith(
        "On distance-copying, it depends on difficulty: no at 2 (random is no worse than dot "
        "product), yes at 8 (the one row without dot product is worse); margin "
    )
    assert "Each varied value is judged alone, with its own dot and its own 5%." in told
    assert "each varied value has its own dot product" in told


def test_the_first_table_has_the_papers_order_and_each_varied_value_by_itself(tmp_path, probe):
    """Best first it would be random+dot, random, dot; a score of 2 beside one of 8 says nothing."""
    how = {"sets": ("paper=mt-wmt14-ende",)}
    shares = {"random+dot": 0.9, "random": 0.8, "none": 0.7, "dot": 0.6}
    rows = [(spec, spec, (1, 2, 3), share, how) for spec, share in shares.items()]
    summary, _ = made(tmp_path, rows)
    assert [line.row.label for line in tables.in_order(summary)] == [
        "dot", "random", "random+dot", "none"
    ]  # fmt: skip
    values = [line.row.label[-1] for line in tables.in_order(probe[0])]
    assert values == sorted(values)
    assert {*values} == {"2", "8"}


def test_accuracy_is_drawn_against_difficulty_and_quality_against_the_cache(probe, monkeypatch):
    summary, _ = probe
    first = page("", [], lead(summary))
    assert "token accuracy, % by difficulty, one line per variant" in first
    assert "Means over seeds, by data.difficulty; small open marks beside them are" in first
    assert "Pareto front" not in first, "scores of two difficulties are not of one task"
    varied = [s.blocks[0] for s in sections(summary, drawn=False) if s.heading == "By varied value"]
    assert "difficulty 8" in varied[0].markdown()
    one_value = {"dot": [("2", [1.0])]}
    assert plots.by_value(summary, one_value, "difficulty") == "", "one value is no curve"
    assert "Quality against the cache of a token" in plots.quality_and_cache(summary)
    for line in summary.lines:
        monkeypatch.setitem(line.cost, "cache", 1024)
    assert plots.quality_and_cache(summary) == "", "all rows keep as much of a token"


def test_a_seed_that_failed_is_seen_beside_the_mean_and_the_better_is_up(probe, monkeypatch):
    summary, _ = probe
    drawn, inverted = [], []
    whole = Axes.plot

    def plot(axes, *args, **look):
        drawn.append((list(args[0]), list(args[1])))
        return whole(axes, *args, **look)

    monkeypatch.setattr(Axes, "plot", plot)
    monkeypatch.setattr(Axes, "invert_yaxis", lambda axes: inverted.append(axes))
    points = {"dot": [("2", [100.0]), ("8", [100.0, 25.0])]}
    assert "by difficulty" in plots.by_value(summary, points, "difficulty")
    assert drawn == [([0, 1], [100.0, 62.5]), ([0.04], [100.0]), ([1.04] * 2, [100.0, 25.0])]
    assert inverted == []
    loss = replace(summary, metric="bits_per_byte", higher_is_better=False)
    plots.by_value(loss, points, "difficulty")
    assert len(inverted) == 1
    monkeypatch.setattr(Row, "scores", lambda row, key: {1: 4.7312, 2: 4.7316})
    head, lines = tables.varied_table(loss)
    assert head == ["variant", "difficulty 2", "difficulty 8"]
    assert lines[0] == ["dot", "4.731 ± 0.000", "4.731 ± 0.000"]


def test_the_scope_names_all_varied_values(probe):
    """It named those of the first row."""
    assert "; difficulty 2, 8; seeds 1, 2, 3. Only self-attention" in probe[0].scope
    recipe = {"name": "a", "model": {"num_layers": 2, "d_model": 64, "num_heads": 1, "max_len": 9}}
    recipe["train"] = {"batch_tokens": 10, "steps": 20}
    assert "of width 64, 1, 2 or 4 heads, length 9; 20 steps of 10 tokens on a; seed 1." in scope(
        recipe, [1], {"num_heads": ["1", "2", "4"]}
    )
    assert "width 64, 1 head, length 9" in scope(recipe, [1], {})
    assert "; seeds 1 to 5, 8, 1001, 1002." in scope(recipe, [1, 2, 3, 4, 5, 8, 1001, 1002], {})
