"""The report, from hand-made run directories: whole, broken and half-way; seen by a browser."""

import csv
import json
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest

import browser
from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.scores import METRICS, Metric, score
from synthesizer_attention.report import plots, tables
from synthesizer_attention.report.notes import notes
from synthesizer_attention.report.page import Section, Text, page
from synthesizer_attention.report.plots import lower_edge, pareto, quality_and_speed
from synthesizer_attention.report.style import _spread
from synthesizer_attention.report.tables import cells, in_bytes
from synthesizer_attention.report.write import summarize_all, write_report
from synthesizer_attention.run.recipe import dump, load_recipe
from synthesizer_attention.study import stats

EDGES = np.linspace(-6.0, 0.0, 49)


def attention(rng, *, mixture, layers=2, heads=3, length=7):
    arrays = {
        "edges": EDGES,
        "decoder.map": rng.integers(0, 256, (layers, heads, length, length)).astype(np.uint8),
        "decoder.sharpness": rng.random((layers, heads)),
        "decoder.histogram": rng.integers(0, 50, (2, layers, 48)),
        "decoder.layers": np.arange(layers),
    }
    if mixture:
        first = rng.random((layers, heads, 1))
        arrays["decoder.alphas"] = np.concatenate([first, 1 - first], -1)
    return arrays


def make_run(
    path, spec, seed, share, *, recipe="shift", finished=True, sets=(), commit="0123abc" * 6
):
    """A run whose model got a share of 2,000 test examples right."""
    path.mkdir(parents=True)
    loaded = load_recipe(recipe, synthesis=spec, overrides=[f"seed={seed}", *sets])
    (path / "recipe.toml").write_text(dump(loaded))
    steps = range(50, 301 if finished else 151, 50)
    lines = [{"step": step, "loss": 3 - step / 200, "lr": 1e-3} for step in steps]
    lines.append({"step": steps[-1], "validation": {"token_accuracy": 100 * share}})
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
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
    (path / "result.json").write_text(json.dumps(result))
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


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    home = make_study(tmp_path_factory.mktemp("study") / "shift")
    write_report([home])
    return home


def test_the_answer_and_every_verdict_are_told(study):
    (summary,) = summarize_all([study])
    assert summary.answer == (
        "No: on shift random is no worse than dot product (margin 1 point of token accuracy); "
        "random+dot is better than dot."
    )
    words = {line.row.label: line.comparison and line.comparison.word for line in summary.lines}
    assert words == {
        "dot": None,
        "random": "no worse",
        "dense": "worse",
        "random+dot": "better",
        "none": "worse",
        "fixed_random": None,
        "wide": None,
    }
    for name in ("report.html", "report.md"):
        text = (study / name).read_text()
        assert summary.answer in text
        assert "cross-attention, where a model has any, is dot product in all of them" in text
        assert "synthesizer compare shift --seeds 3" in text
        assert "learning rates, which were chosen for dot" in text
        assert "all variants have the same parameters" in text


def test_what_can_be_had_without_a_network_is_told(study):
    floors = (
        "an interpolated bigram model of train has 12.35",
        "logistic regression on the tokens of a text, in whatever order, has 3.21",
    )
    for name in ("report.html", "report.md"):
        text = (study / name).read_text()
        for told in floors:
            assert f"Without any network, {told} (token accuracy, %) on the same examples." in text


def test_how_deep_tokens_go_has_a_column_where_a_row_tells_it(study, tmp_path):
    (summary,) = summarize_all([study])
    head, rows = cells(summary)
    told = {row[0].split("\n")[1]: row[head.index("steps per token")] for row in rows}
    assert (told["dense"], told["dot"]) == ("1.75", "\N{EN DASH}")
    make_run(tmp_path / "dot/seed1", "dot", 1, 0.9)
    (alone,) = summarize_all([tmp_path])
    assert "steps per token" not in cells(alone)[0]


def test_failed_and_partial_rows_are_shown_with_what_is_known(study):
    (summary,) = summarize_all([study])
    states = {line.row.label: line.state for line in summary.lines}
    assert states["wide"] == "failed: out of <memory>"
    assert states["fixed_random"] == (
        "seed 1 stopped at step 150 of 500; seed 2 unreadable result.json (JSONDecodeError)"
    )
    html = (study / "report.html").read_text()
    assert "out of &lt;memory&gt;" in html
    assert "d_ff 99" in html
    assert "trials/lr1" not in html, "a run that study.json does not list belongs to no row"


def test_the_page_has_every_part(study):
    html = (study / "report.html").read_text()
    headings = re.findall(r"<h2>(.*?)</h2>", html)
    assert headings == [
        "Results",
        "Learning curves",
        "Attention maps",
        "Distribution of attention weights",
        "Mixture weights",
        "Samples",
        "Reproduce",
        "Terms",
    ]
    labels = re.findall(r'<svg role="img" aria-label="(.*?)"', html)
    assert len(labels) == 2 + 2 + 4 + 4 + 1
    assert "a &lt;b&gt; &amp; c" in html
    assert "random+dot says 1" in html
    assert "two \N{DOWNWARDS ARROW WITH CORNER LEFTWARDS} lines" in html
    assert "Greedy decoding with a cache" in html
    for fact in (
        "commit: 0123abc0123abc",
        "torch 2.13.0",
        "seeds: 1; 2; 3",
        "positions|v1",
        "@inproc",
    ):
        assert fact in html


class Links(HTMLParser):
    """Everything a page would fetch."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        names = ("src", "href", "xlink:href", "srcset", "action", "data", "poster")
        self.found += [value for name, value in attrs if name in names]


def test_a_long_curve_is_thinned_and_keeps_its_spikes(tmp_path):
    run = make_run(tmp_path / "dot", "dot", 1, 0.9)
    short = len(write_report([run]).read_text())
    losses = np.full(30_000, 2.0) + np.arange(30_000) % 7 / 10
    losses[12_345] = 90.0
    lines = [{"step": step, "loss": loss} for step, loss in enumerate(losses, start=1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    html = write_report([run]).read_text()
    assert len(html) < short + 200_000
    assert "step (thinned to 2,000 points, extremes kept)" in html
    assert ">80<" in html, "the axis reaches the one step of 90"


def test_the_page_fetches_nothing(study):
    html = (study / "report.html").read_text()
    links = Links()
    links.feed(html)
    assert links.found
    assert all(link.startswith(("data:", "#")) for link in links.found)
    assert not re.search(r"https?://|@import|url\((?!#)", html)


def test_plots_are_drawn_in_the_colours_of_the_page(study):
    html = (study / "report.html").read_text()
    assert "prefers-color-scheme: dark" in html
    drawn = set(re.findall(r"#[0-9a-f]{6}\b", "".join(re.findall(r"<svg.*?</svg>", html, re.S))))
    assert drawn <= {"#ffffff", "#000000"}
    names = set(re.findall(r"var\((--\w+)\)", html))
    assert all(f"{name}:" in html for name in names)


@pytest.mark.skipif(browser.PATH is None, reason="no Chromium is installed")
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_a_browser_opens_the_page_without_a_complaint(study, tmp_path, width, scheme):
    """It asks for nothing but the file, and does not scroll sideways, be it on a phone."""
    page = study / "report.html"
    seen = browser.look(page, tmp_path, width=width, scheme=scheme)
    assert "Does shift need dot-product attention?" in seen.text
    assert seen.complaints == []
    assert {url for url in seen.requests if not url.startswith("data:")} == {page.as_uri()}
    assert seen.width <= width


@pytest.mark.skipif(browser.PATH is None, reason="no Chromium is installed")
def test_a_click_on_a_heading_sorts_the_table(study, tmp_path):
    names = "[...document.querySelectorAll('table')[0].tBodies[0].rows].map(r => r.innerText)"
    first = f"{names}.map(text => text.split('\\n')[1]).join()"
    click = "[...document.querySelectorAll('th button')].find(b => b.innerText == '{}').click()"
    ask = [first, f"{click.format('training, tokens/s')}; {first}"]
    ask += [f"{click.format('training, tokens/s')}; {first}"]
    page = study / "report.html"
    seen = browser.look(page, tmp_path, width=1400, scheme="light", ask=ask)
    by_result, fastest, slowest = (answer.split(",") for answer in seen.answers)
    assert by_result[0].startswith("random+dot")
    assert [name.split("\t")[0] for name in fastest[:2]] == ["random+dot", "random"]
    assert slowest[0].startswith("dot")
    assert seen.complaints == []


def test_rows_are_sorted_by_result_and_keep_their_colours(study):
    (summary,) = summarize_all([study])
    labels = [line.row.label for line in summary.lines]
    assert labels == ["random+dot", "dot", "random", "dense", "none", "fixed_random", "wide"]
    assert [line.index for line in summary.lines] == [3, 0, 1, 2, 4, 5, 6]


def test_headings_explain_themselves(study):
    html = (study / "report.html").read_text()
    heading = re.search(r'<th scope=col title="(1 - entropy[^"]*)"><button>sharpness', html)
    assert "A table near 0 was not learned" in heading[1]
    for anchor in re.findall(r'<a href="#([\w-]+)"', html):
        assert html.count(f'id="{anchor}"') == 1
    assert "- sharpness: 1 - entropy" in (study / "report.md").read_text()


def test_plots_have_room_for_the_best_rows_and_the_table_for_all(tmp_path):
    """A hundred names beside a plot left no room for its axes, which warned and drew nothing."""
    make_run(tmp_path / "dot", "dot", 1, 0.1)
    for k in range(1, 41):
        make_run(tmp_path / str(k), f"factorized_random:k={k}", 1, 0.2 + k / 100)
    (summary,) = summarize_all([tmp_path])
    drawn = [line.row.label for line in summary.drawn]
    assert drawn == [f"factorized_random:k={k}" for k in range(40, 25, -1)] + ["dot"]
    html = write_report([tmp_path]).read_text()
    assert "Plots show the best 16; 25 more are in the table." in html
    assert html.count("<th scope=row>Factorized Random<small>") == 40


def test_many_studies_have_plots_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr("synthesizer_attention.report.write.MOST_DRAWN", 2)
    for number in range(3):
        make_run(tmp_path / str(number), "dot", 1, 0.5, sets=[f"train.lr={number + 1}"])
    html = write_report([tmp_path]).read_text()
    assert "Plots are drawn for the first 2 of 3 studies" in html
    assert html.count(": Learning curves</h2>") == 2
    assert html.count(": Results</h2>") == 3


def test_the_csv_keeps_numbers_unrounded(study):
    lines = (study / "table.csv").read_text().splitlines()
    rows = {row["row"]: row for row in csv.DictReader(lines)}
    assert float(rows["dense"]["difference"]) == pytest.approx(-50)
    assert float(rows["dense"]["low"]) < -50 < float(rows["dense"]["high"])
    assert (rows["random"]["verdict"], rows["random"]["seeds"]) == ("no worse", "3")
    assert (rows["wide"]["mean"], rows["wide"]["remarks"]) == ("", "failed: out of <memory>")
    assert float(rows["random"]["training_relative"]) == 2
    assert float(rows["random"]["decoding_relative"]) == 2
    assert (rows["none"]["decoding"], rows["none"]["memory"]) == ("", str(2.0**24))


def test_what_was_tried_for_each_row_is_shown_best_first(tmp_path):
    trials = [
        {"changes": ["train.lr=0.1", "train.table_rate=30"], "validation": None},
        {"changes": ["train.lr=0.01", "train.table_rate=30"], "validation": 51.25},
        {"changes": ["train.lr=0.02", "train.table_rate=5"], "validation": 60.5},
    ]
    make_run(tmp_path / "a", "dot", 1, 0.9)
    row = {"label": "dot", "spec": "dot", "runs": ["a"], "trials": trials}
    (tmp_path / "study.json").write_text(json.dumps({"rows": [row], "tune": 3}))
    text = (write_report([tmp_path]).parent / "report.md").read_text()
    assert "Every variant had 3 trials of learning rate and table rate" in text
    dash = "\N{EN DASH}"
    first, second = f"0.02 | 5 | {dash} | 60.50 | chosen", f"0.01 | 30 | {dash} | 51.25 | "
    assert f"| dot | {first} |\n| dot | {second} |" in text
    assert f"| dot | 0.1 | 30 | {dash} | failed |  |" in text
    assert "| dot | inside | 55.88 | 55.88 | 60.50 |" in text


def test_results_of_an_older_version_are_read_and_their_memory_is_named_as_what_it_is(tmp_path):
    for spec in ("dot", "random"):
        run = make_run(tmp_path / spec, spec, 1, 0.9)
        result = json.loads((run / "result.json").read_text())
        del result["decoding_tokens_per_second"], result["training_memory_bytes"]
        result |= {"generation_tokens_per_second": None, "peak_memory_bytes": 2**29}
        (run / "result.json").write_text(json.dumps(result))
    text = (write_report([tmp_path]).parent / "report.md").read_text()
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
    text = write_report([tmp_path]).read_text()
    assert "examples alone, as there are too few seeds" in text
    assert "shift (train.steps=9): the answer" in text


def test_runs_that_began_with_their_own_pretrained_twins_are_one_table(tmp_path):
    """Split by what they began with, no two of them made a pair."""
    for spec in ("dot", "random"):
        for seed in (1, 2):
            before = f"train.start_from=runs/pretrained/{spec}/seed{seed}"
            make_run(tmp_path / f"{spec}{seed}", spec, seed, 0.9, sets=[before])
    make_run(tmp_path / "other", "random", 1, 0.9, sets=["train.start_from=runs/elsewhere"])
    first, second = summarize_all([tmp_path])
    assert [(line.row.label, len(line.row.runs)) for line in first.lines] == [
        ("dot", 2),
        ("random", 2),
    ]
    assert [line.row.label for line in second.lines] == ["random"]


def test_runs_that_have_only_begun_are_reported(tmp_path):
    make_run(tmp_path / "a", "dot", 1, 0.9, finished=False)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/recipe.toml").write_text("name = ")
    html = write_report([tmp_path]).read_text()
    assert "stopped at step 150 of 500" in html
    assert "unreadable recipe.toml (TOMLDecodeError)" in html


def test_a_run_that_diverged_does_not_spoil_the_page(tmp_path):
    for spec in ("dot", "random"):
        for seed in (1, 2, 3):
            run = make_run(tmp_path / spec / str(seed), spec, seed, 0.9)
            if spec == "random":
                result = json.loads((run / "result.json").read_text())
                result["metrics"]["token_accuracy"] = float("nan")
                (run / "result.json").write_text(json.dumps(result))
    (summary,) = summarize_all([tmp_path])
    assert summary.lines[1].comparison.word == "not judged"
    assert "token accuracy" in write_report([tmp_path]).read_text()


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no run below .*; a run directory holds a recipe\.toml"):
        write_report([tmp_path])
    with pytest.raises(
        UserError,
        match="is not a directory; name run directories, one that contains some, or a packed",
    ):
        write_report([tmp_path / "missing"])
    (tmp_path / "study.json").write_text("[]")
    with pytest.raises(UserError, match=r"study\.json is not the record .*; restore it"):
        write_report([tmp_path])


def test_the_verb_writes_the_same_files_and_says_the_answer(study, tmp_path, capsys):
    assert main(["report", str(study), "--out", str(tmp_path)]) == 0
    *_, answer, path = capsys.readouterr().out.splitlines()
    assert answer.startswith("Does shift need dot-product attention? No: on shift random")
    assert path == str(tmp_path / "report.html")
    for name in ("report.html", "report.md", "table.csv"):
        assert (tmp_path / name).read_bytes() == (study / name).read_bytes()
    assert main(["report", str(tmp_path / "missing")]) == 2


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


def test_a_cache_of_bytes_is_not_rounded_to_nothing():
    shown = [in_bytes(value) for value in (None, 0, 512, 24_576, 11 * 2**20)]
    assert shown == ["\N{EN DASH}", "0 B", "512 B", "24 KiB", "11 MiB"]


def test_published_numbers_stand_apart(tmp_path):
    make_run(tmp_path / "a", "dot", 1, 0.9, recipe="listops")
    html = write_report([tmp_path]).read_text()
    assert html.index("<h2>Results") < html.index("Published results") < html.index("36.99")
    assert "Numbers of others, at their scale" in html


def test_a_score_far_below_the_others_leaves_them_room():
    assert lower_edge([2.0, 1.9, 1.8, 1.0]) == pytest.approx(1.74)  # three tenths below 1.8
    assert lower_edge([2.0, 1.9, 1.8, 1.5, -9.0]) == pytest.approx(1.35), "1.5 has room"
    assert lower_edge([2.0, 1.9, 1.8, 1.5]) == 1.5
    assert lower_edge([2.0, 1.9, -9.0]) == -9.0, "too few to tell"
    assert lower_edge([2.0, 2.0, 2.0, 1.0]) == 1.0, "the others are one point"


def test_the_front_holds_what_nothing_beats():
    assert pareto([(1, 1), (2, 0), (0, 2), (1, 0), (1, 1)]) == {0, 1, 2, 4}


def test_names_beside_a_plot_do_not_overlap():
    crowded = (
        [0.5] * 4,
        [0.99, 1.0, 1.0],
        [0.0, 0.0, 0.9],
        [0.9] * 16,
        list(np.linspace(0, 1, 12)),
    )
    for heights in crowded:
        placed = _spread(sorted(heights))
        assert min(b - a for a, b in pairwise(placed)) > 0.0749
        assert min(placed) >= 0
    assert _spread([0.2, 0.21, 0.9]) == pytest.approx([0.1675, 0.2425, 0.9])


def test_points_are_named_by_their_looks_and_not_by_lines(tmp_path, monkeypatch):
    """Lines from close points to their names crossed in a bundle."""
    figures = []
    monkeypatch.setattr(plots, "to_svg", lambda figure, title: figures.append(figure) or "")
    close = "dot", "random", "dense", "relative", "random+dot", "dense+dot", "fixed_random"
    for number, spec in enumerate(close):
        make_run(tmp_path / spec, spec, 1, 0.5 + number / 1000)
    (summary,) = summarize_all([tmp_path])
    quality_and_speed(summary)
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


def test_a_metric_added_from_outside_is_scored_judged_and_shown(tmp_path, monkeypatch):
    """Its line in METRICS is all that a report and a verdict need."""
    half = Metric(lambda total: float(50 * total[0] / total[1]), "half accuracy, %", margin=0.25)
    monkeypatch.setitem(METRICS, "half", half)
    home = make_study(tmp_path / "shift")
    for file in home.rglob("seed*/result.json"):
        try:
            result = json.loads(file.read_text())
        except ValueError:  # one of the runs is broken
            continue
        result["metrics"]["half"] = result["metrics"]["token_accuracy"] / 2
        file.write_text(json.dumps(result))
        arrays = dict(np.load(file.with_name("statistics.npz")))
        np.savez(file.with_name("statistics.npz"), **arrays, half=arrays["token_accuracy"])
    (summary,) = summarize_all([home])
    assert tables.metric_tables(summary) is None, "one metric needs no table of its own"
    monkeypatch.setitem(tables.COLUMNS, "probe", {"all": ("token_accuracy",)})
    means, differences = tables.metric_tables(summary)
    assert means[0] == ["variant", "all", "half accuracy, %"]
    words = {row[0]: [cell.rpartition(", ")[2] for cell in row[1:]] for row in differences[1]}
    assert words["dense"] == ["worse", "worse"]
    assert stats.allowed("half", stats.Measured("dot", {1: 90.0}, {})) == 0.25


def test_every_main_metric_can_be_judged():
    mains = ("bleu", "bleu4", "rougeL", "perplexity", "bits_per_byte", "accuracy", "token_accuracy")
    assert set(mains) <= set(METRICS)


def made(home, rows, **facts):
    """A study of rows (label, spec, seeds, share), and what its report says."""
    listed = []
    for number, (label, spec, seeds, share) in enumerate(rows):
        runs = [f"{number}/seed{seed}" for seed in seeds]
        for seed, run in zip(seeds, runs, strict=True):
            make_run(home / run, spec, seed, share, commit=facts.get("commits", {}).get(seed, "c"))
        listed.append({"label": label, "spec": spec, "runs": runs})
    (home / "study.json").write_text(json.dumps({"rows": listed, "recipe": "shift", **facts}))
    (summary,) = summarize_all([home])
    return summary, "\n".join(notes(summary))


def test_dot_that_differs_from_itself_voids_the_table(tmp_path):
    rows = [("dot", "dot", (1, 2, 3), 0.9), ("random", "random", (1, 2, 3), 0.9)]
    again = ("dot, other seeds", "dot", (11, 12, 13), 0.5)
    summary, told = made(tmp_path / "void", [*rows, again])
    assert summary.lines[1].comparison.word == "void"
    assert "A/A check" in summary.answer
    assert "THE TABLE IS VOID: dot under other seeds is called worse than dot (-40.00)" in told
    summary, told = made(tmp_path / "sound", [*rows, (*again[:3], 0.9)])
    assert summary.lines[1].comparison.word == "no worse"
    assert "against dot (+0.00), as it should be." in told
    assert "A/A check: none" in made(tmp_path / "none", rows)[1]


def test_the_plot_of_differences_names_the_dot_they_are_from(tmp_path):
    """A row called dot may be another one; and two numbers of an axis tell how far rows are."""
    rows = [("dot", "dot", (1, 2, 3), 0.9), ("random", "random", (1, 2, 3), 0.5)]
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


def test_a_row_without_attention_that_nothing_beats_is_named(tmp_path):
    rows = [("dot", "dot", (1, 2), 0.9), ("none", "none", (1, 2), 0.9)]
    assert "NO ROW BEATS THE ONE WITHOUT SELF-ATTENTION: none has" in made(tmp_path / "a", rows)[1]
    rows[1] = ("none", "none", (1, 2), 0.5)
    assert "NO ROW BEATS THE ONE WITHOUT" not in made(tmp_path / "b", rows)[1]


@pytest.mark.parametrize(("worth", "reads"), [((0.02, 0.04), False), ((0.02, 0.3), True)])
def test_rows_that_do_not_read_their_source_are_named(tmp_path, worth, reads):
    made(tmp_path, [("dot", "dot", (1, 2), 0.9), ("random", "random", (1, 2), 0.8)])
    for row, value in enumerate(worth):
        for path in tmp_path.glob(f"{row}/*/result.json"):
            result = json.loads(path.read_text()) | {
                ("source_gap" if row else "worth_of_source"): value
            }
            path.write_text(json.dumps(result))
    (summary,) = summarize_all([tmp_path])
    assert ("NO ROW READS ITS SOURCE" in "\n".join(notes(summary))) != reads
    assert "source gap" in cells(summary)[0]


def test_settings_that_were_measured_are_told(tmp_path):
    trials = [
        {"changes": [], "validation": 71.0, "run": "trials/a"},
        {"changes": ["text.kind=word"], "validation": 80.5, "run": "trials/b"},
    ]
    one = {"choice": "tokenizer", "row": "dot", "trials": trials, "chosen": ["text.kind=word"]}
    rows = [("dot", "dot", (1, 2), 0.9), ("random", "random", (1, 2), 0.8)]
    _, told = made(tmp_path, rows, measured=[one])
    assert (
        "The tokenizer of all variants was chosen by dot on validation (as inferred 71.00; "
        "text.kind=word 80.50): text.kind=word." in told
    )


def test_a_reader_learns_what_to_distrust(tmp_path):
    rows = [("dot", "dot", (1, 2, 3), 0.1), ("random", "random", (1, 2, 3), 0.09)]
    looks = {"planned": [3, 5], "taken": [3]}
    summary, told = made(tmp_path, rows, commits={3: "other"}, looks=looks)
    assert (
        "NO ROW BEATS A BASELINE WITHOUT A NETWORK: an interpolated bigram model of train has"
        in told
    )
    assert "The runs come from 2 commits (c, other); no seed was run again" in told
    assert "up to 63% of all seeds still may" in told
    assert "Interim looks were planned at 3, 5 seeds and taken at 3" in told
    assert "each of the 2,000 counts as independent" in told
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
    (_, cells) = tables.metric_tables(summary)[1]
    told = {
        line.row.label: tables.difference_and_verdict(line.comparison) for line in summary.lines
    }
    assert cells == [["random", told["random"], told["random"]]]
    assert "[" in told["random"]


def test_speeds_of_unlike_machines_are_not_compared(tmp_path):
    """One row ran on a GPU, another on two kinds of processor: neither stands beside dot."""
    home = tmp_path / "study"
    kinds = {
        "dot": [("cpu", "A")] * 2,
        "random": [("cpu", "A")] * 2,
        "dense": [("H100", "A")] * 2,
        "none": [("cpu", "A"), ("cpu", "B")],
    }
    for spec, own in kinds.items():
        for seed, (device, processor) in enumerate(own, start=1):
            path = make_run(home / spec / f"seed{seed}", spec, seed, 0.5) / "result.json"
            told = json.loads(path.read_text()) | {"device": device, "processor": processor}
            path.write_text(json.dumps(told | {"host": f"host-{device}-{processor}"}))
    (summary,) = summarize_all([home])
    relative = {line.row.label: line.relative for line in summary.lines}
    assert relative["random"]["training"] == 2.0
    assert relative["dense"]["training"] is None
    assert relative["none"]["training"] is relative["none"]["decoding"] is None
    assert relative["dense"]["flops"] == 1.0
    write_report([home])
    text = (home / "report.md").read_text()
    assert "these runs were made on 3: cpu on A, threads: 1; H100 on A" in text
    assert "host: host-cpu-A; host-H100-A; host-cpu-B" in text
