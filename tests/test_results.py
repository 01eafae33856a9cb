"""What the committed records say, judged anew; the pages made of them; what the paper reports."""

import csv
import json
import re
import runpy
import sys
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synthesizer_attention.audit.cost import Point, most_heads, sentence
from synthesizer_attention.metrics.glue import GLUE
from synthesizer_attention.report.load import read_run
from synthesizer_attention.report.notes import notes
from synthesizer_attention.report.tables import COLUMNS, in_order, paper_tables
from synthesizer_attention.report.write import summarize_all, text_of
from synthesizer_attention.run.recipe import load_recipe, paper, recipe_names
from synthesizer_attention.run.records import opened
from synthesizer_attention.spec import normalize_spec
from synthesizer_attention.study.rows import make_row, size_control

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import claims
import performance
import recipes
import results

ROOT = Path(__file__).parents[1]
RESULTS = Path("results")
STUDIES = sorted(path.stem for path in (ROOT / RESULTS).glob("*.zip"))
STALE = "the records or the tables changed: run python tools/results.py and commit what it writes"

results.summarize_all = lambda paths: _summarized(*paths)  # once for all tests


@cache
def _summarized(path):
    return summarize_all([path])


def summarized(name):
    (summary,) = _summarized(RESULTS / f"{name}.zip")
    return summary


@pytest.fixture(autouse=True)
def _at_home(monkeypatch):
    """Reports name runs by paths from here."""
    monkeypatch.chdir(ROOT)


def tables(text):
    return [line for line in text.splitlines() if line.startswith("|")]


@pytest.fixture
def found():
    return results.summaries(RESULTS)


def test_the_readmes_table_is_generated(found):
    readme = (ROOT / "README.md").read_text()
    assert results.with_table(readme, results.main_table(found)) == readme, STALE


def test_the_page_is_generated(found):
    page = (ROOT / "docs" / "results.md").read_text()
    assert results.page(found) == page, STALE
    drawn = {path.name for path in (ROOT / "docs" / "images").glob("results-*.svg")}
    assert drawn == {*results.PLOTS}, STALE
    assert all(f"(images/{file})" in page for file in drawn)
    for link in re.findall(r"\]\((\.\./results/[^)]+)\)", page):
        assert (ROOT / "docs" / link).exists(), link


def test_the_sentences_of_the_page_say_what_the_tables_decide(found):
    """Each is typed once, so the words behind it are held here."""
    tasks = {name: results.Task(name, found[name]) for name in results.TASKS}
    for name in ("pairs", "recall"):
        assert tasks[name].answer == "yes: every row without one is worse"
    assert tasks["shift"].of("random").word == "no worse"
    fresh = tasks["language-modeling-fresh"].compared()
    assert {name.split(",")[0]: found.word for name, found in fresh.items() if "dot" in name} == {
        "dense+dot": "no worse",
        "random+dot": "no worse",
    }
    assert fresh["random"].word == "worse"
    assert fresh["lightconv"].word == "no worse"
    assert tasks["language-modeling"].of("dense").word == "worse"
    assert tasks["python-docs"].without_dot()["lightconv"].word == "no worse"
    for name in ("translation", "summarization"):
        assert tasks[name].of("random").word == "undecided"
    for name in ("pairs", "translation", "summarization"):
        assert tasks[name].of("random+dot").word == "undecided"
    mixed = [tasks[name].of(spec) for name in tasks for spec in ("random+dot", "dense+dot")]
    assert all(one is None or one.word != "better" for one in mixed)
    for name in ("translation", "language-modeling"):
        means = {line.row.label: line.mean for line in found[name].lines}
        best, sign = found[name].dot_name, found[name].sign
        assert sign * means["dot"] < sign * means["random"] < sign * means[best]
    heads = {line.row.label: line.mean for line in found["heads"].lines}
    dots, tables, dense = (
        [heads[f"{name}, num_heads {n}"] for n in (1, 2, 4, 8, 16)]
        for name in ("dot, sinusoidal+relative", "random", "dense")
    )
    assert dots == sorted(dots, reverse=True)
    assert min(tables) == tables[2]
    assert min(dense) == dense[0]


def test_differences_are_counted_in_margins_and_more_is_better(found):
    losses, points = (results.Task(name, found[name]) for name in ("language-modeling", "pairs"))
    assert losses.margins(losses.of("random")) == pytest.approx(-0.049 / 0.02, abs=0.05)
    assert points.margins(points.of("dense")) == pytest.approx(-23.25, abs=0.01)
    assert results.Task("dialogue", found["dialogue"]).of("none").word == "worse"  # perplexity


def test_a_claim_has_one_line_and_the_words_of_the_tables(found):
    """Multi30k's dense is what its own table calls it, and a claim is judged among the claims."""
    lines = claims.judge_claims(found, RESULTS / "bench")
    assert len(lines) == len({line[0] for line in lines}) == len(claims.CLAIMS) + 1
    here = {line[0]: line[3:] for line in lines}
    words = {line.row.label: line.comparison.word for line in found["translation"].lines
             if line.comparison}  # fmt: skip
    word, said = here["Random and Dense are near dot product in translation."]
    assert said == (
        f"random {words['random']}, dense {words['dense']} (against dot, sinusoidal+relative)"
    )
    assert word == claims.OPEN
    assert here["Dense + Vanilla is the best in language modelling."][0] == claims.OPEN
    assert here["Random has a lower perplexity than dynamic convolution."] == [
        claims.FAILS,
        "random +0.033 (against dynamicconv)",
    ]
    pure = here["Pure Synthesizers are behind dot product in language modelling."]
    assert pure[0] == claims.HOLDS
    assert pure[1].count(" worse") == len(claims.TABLE_2)
    assert here["Pure Synthesizers lose to dot product after pretraining."] == [
        claims.HOLDS,
        "random worse, dense worse (against dot)",
    ]
    speed = here["Random is 60% faster than dynamic convolution."]
    assert speed[0] == claims.FAILS
    assert speed[1].startswith("whole models: lm of 256 tokens 1.18")


def test_a_claim_holds_with_all_of_its_rows_and_fails_with_one(found):
    def judged(pairs):
        (line, _) = claims.judge_claims(found, RESULTS, [claims.Claim("", "", ("recall",), pairs)])
        return line[3:]

    assert judged(claims.near("random", "dense"))[0] == claims.FAILS
    assert judged(claims.near("random+dot", "dense"))[0] == claims.FAILS, "one row contradicts"
    assert judged(claims.behind("random", "dense"))[0] == claims.HOLDS
    assert judged(claims.behind("random", "linformer")) == [
        claims.OPEN,
        "random worse (against dot); not run: linformer",
    ]
    both = claims.all_of(claims.behind("random"), claims.ahead(["dot"], "dense"))
    word, said = judged(both)
    assert word == claims.HOLDS
    assert said.startswith("random worse (against dot); dot +")
    assert judged(claims.near("linformer")) == [claims.NOT_RUN, ""]


def test_the_level_is_shared_out_among_claims_by_holm():
    """A p of 0.02 passes alone and beside one that passes, and not beside one that fails."""
    p = {"a": 0.02, "b": 0.001, "c": 0.3}

    def passed(*names):
        return claims.holm(names, lambda name, level: p[name] <= level)

    assert passed("a") == {"a"}
    assert passed("a", "b") == {"a", "b"}
    assert passed("a", "c") == set()
    assert passed("a", "b", "c") == {"b"}


def test_a_claim_takes_the_row_with_most_of_the_best_dots_settings(found):
    """Tables have its positions, and no start of queries and keys to share."""
    pairs = found["pairs"]
    best = pairs.opponent.label
    assert best == "dot, sinusoidal+relative, equal_qk_init=true"
    labels = [claims.row_of(pairs, spec).label for spec in ("random+dot", "random", "dense")]
    assert labels == [
        "random+dot" + best.removeprefix("dot"),
        "random, sinusoidal+relative",
        "dense",
    ]
    assert claims.row_of(pairs, "linformer") is None


def test_a_convolution_is_explained_by_its_offsets_and_a_table_of_noise_is_not():
    rng, size = np.random.default_rng(0), 40
    offsets = np.arange(size)[None] - np.arange(size)[:, None]
    kernel = np.exp(-np.abs(offsets + 2.0))
    noise = rng.random((size, size)) ** 8

    def causal(weights):
        visible = np.where(offsets <= 0, weights, 0)
        return np.round(255 * visible / visible.sum(1, keepdims=True)).astype(np.uint8)

    assert results.by_offset(causal(kernel)) > 0.95
    assert results.by_offset(causal(noise)) < 0.3
    assert results.by_offset(np.round(255 * kernel).astype(np.uint8)) > 0.95
    assert results.by_offset(np.zeros((9, 9), dtype=np.uint8)) is None


def test_the_tables_of_the_performance_page_are_generated():
    page = (ROOT / "docs" / "performance.md").read_text()
    assert performance.filled(page) == page, "run python tools/performance.py and commit the page"


def test_the_page_of_recipe_keys_is_generated_and_says_what_each_is_for():
    page = (ROOT / "docs" / "recipes.md").read_text()
    assert recipes.page() == page, "run python tools/recipes.py and commit the page"
    assert " None |" not in page


def bench_record(folder, name, *rows, **machine):
    shared = {"mode": "train", "view": "causal", "length": 64, "batch": 1, "d_model": 64}
    shared |= dict.fromkeys(("median_seconds", "tokens_per_second"), 1.0)
    shared |= dict.fromkeys(("speed", "speed_low", "speed_high"), 1.0)
    shared |= {"saved_bytes": 8_000_000, "peak_bytes": 9_000_000, "flops": 1}
    shared |= {"gemm_fraction": 1.0, "threads": 1, "precision": "float32"}
    machine = {"device": "a CPU", "load_average": 0.0, "gemm_flops_per_second": 1e9} | machine
    record = {"rows": [shared | row for row in rows], "machine": machine, "command": "bench"}
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "bench.json").write_text(json.dumps(record))


def test_goals_are_met_or_missed_by_the_best_rounds(tmp_path):
    seconds = {"dot": 2.0, "random": 1.0, "dense": 4.0}
    rows = [{"variant": name, "best_seconds": s} for name, s in seconds.items()]
    bench_record(tmp_path, "small-sublayer", *rows)
    eager = [{"variant": "dense", "best_seconds": 9.0}]
    bench_record(tmp_path, "compiled", *eager, {"variant": "dense, compiled", "best_seconds": 10.0})
    said = performance.goals(tmp_path)
    (small,) = (line for line in said.splitlines() if "length 64, width 64]" in line)
    assert "| dot | `random` 2.00 (2) | **missed** `dense` 0.50 (1.05); not measured: " in small
    assert "| eager |  | **missed** `dense` 0.90 (0.95); not measured: " in said
    assert ": 1 met, 2 missed, " in said


def test_goals_in_bfloat16_need_a_processor_that_has_it(tmp_path):
    rows = [{"variant": "dot", "precision": name, "best_seconds": s}
            for name, s in (("float32", 2.0), ("bfloat16", 1.0))]  # fmt: skip
    bench_record(tmp_path, "memory", *rows, bfloat16=False)
    absent = "not measured, this processor does not multiply bfloat16: `dot` (1.8)"
    assert absent in performance.goals(tmp_path)
    assert "| `dot` | 8 / 8 | 9 / 9 |  /  |" in performance.memory(tmp_path)
    bench_record(tmp_path, "memory", *rows, bfloat16=True)
    assert "| float32 | `dot` 2.00 (1.8) |" in performance.goals(tmp_path)


def test_the_plots_of_growth_are_drawn_from_its_record(tmp_path):
    sizes = [(32, 64), (64, 64), (64, 128)]
    rows = [{"variant": name, "length": n, "d_model": d, "best_seconds": n * d * 1e-6}
            for n, d in sizes for name in ("dot", "random+dense")]  # fmt: skip
    bench_record(tmp_path, "growth", *rows)
    page = tmp_path / "page.md"
    page.write_text("<!-- bench growth -->\n<!-- end -->\n")
    performance.write(page, tmp_path, tmp_path)
    assert "![random+dense: time and memory](images/growth-random-dense.svg)" in page.read_text()
    assert (tmp_path / "growth-random-dense.svg").read_text().startswith("<svg")


# Verdicts of single studies.


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shift", {"random": "no worse", "random+dot": "no worse", "none": "worse"}),
        ("recall", {"random": "worse", "dense": "worse", "none": "worse"}),
        ("distance-copying", {"random, difficulty 8": "worse"}),  # four heads
        ("grammar-ende", {"dot": "worse", "none": "worse"}),  # sinusoids: older records' opponent
        ("pairs", {"dot, sinusoidal+relative": "worse"}),  # drawn apart
    ],
)
def test_a_record_has_these_verdicts(name, words):
    lines = {line.row.label: line for line in summarized(name).lines}
    assert {label: lines[label].comparison.word for label in words} == words


def test_records_show_what_the_docs_say():
    means, said = {}, {}
    for name in ("distance-copying", "grammar-ende", "pairs", "shift", "recall"):
        summary = summarized(name)
        means[name] = {line.row.label: line.mean for line in summary.lines}
        said[name] = "\n".join(notes(summary))
    copying, grammar, pairs = (means[n] for n in ("distance-copying", "grammar-ende", "pairs"))
    assert copying["random, difficulty 4"] > 99
    assert copying["dot, difficulty 8"] == copying["random+dot, difficulty 8"] == 100
    assert grammar["none"] <= 70 < 90 <= grammar["dot"]
    assert pairs["random"] < pairs["dot"] < pairs["random+dot"]
    assert "WEAK" not in said["shift"]  # sinusoids were searched beside two others
    assert "Without any network, a word-by-word dictionary" in said["grammar-ende"]
    opponents = {name: summarized(name).opponent.label for name in ("grammar-ende", "pairs")}
    assert opponents["grammar-ende"] == "dot, sinusoidal+rotary"
    assert opponents["pairs"] == "dot, sinusoidal+relative, equal_qk_init=true"
    answer = summarized("pairs").answer
    assert answer.startswith("Yes: on paraphrases all 4 rows without dot product are worse")
    words = {line.row.label: line.comparison for line in summarized("recall").lines}
    assert words["random+dot"].word != "worse"
    (line,) = [x for x in summarized("grammar-ende-sinusoidal").lines if x.row.label == "universal"]
    assert line.paper_name == "Universal Transformer"
    assert line.state.startswith("left out: universal=True with num_layers=1")


def test_pairs_are_balanced_and_share_no_sentence_between_splits(tmp_path, monkeypatch):
    """Three sentences of each translation, one of which has a second translation."""
    table = {"en": [], "de": []}
    for number in range(300):
        table["en"] += [f"{word} {number % 7} is number {number}." for word in "abc"]
        table["de"] += [f"Zahl {number}"] * 3
    table["en"].append(table["en"][0])  # it stays with the first
    table["de"].append("Zahl 1")
    (tmp_path / "tatoeba_en_de").mkdir()
    pq.write_table(pa.table(table), tmp_path / "tatoeba_en_de" / "train.parquet")
    monkeypatch.setenv("SYNTHESIZER_DATA", str(tmp_path))
    path = ROOT / "tools" / "paraphrases.py"
    runpy.run_path(str(path))["main"](tmp_path / "pairs")
    seen = {}
    for split in ("train", "validation", "test"):
        with (tmp_path / "pairs" / f"{split}.csv").open(newline="") as file:
            rows = [(*row["text"].split(" || "), row["label"]) for row in csv.DictReader(file)]
        seen[split] = {sentence for row in rows for sentence in row[:2]}
        assert sum(label == "same" for *_, label in rows) == len(rows) / 2
        for first, second, label in rows:
            assert (first.split()[-1] == second.split()[-1]) == (label == "same")
    assert not seen["train"] & seen["test"]
    assert not seen["validation"] & (seen["train"] | seen["test"])
    assert load_recipe(tmp_path / "pairs" / "paraphrases.toml").name == "paraphrases"


@pytest.mark.parametrize("name", STUDIES)
def test_the_report_beside_a_packed_study_is_what_its_records_say(name):
    written = text_of(_summarized(RESULTS / f"{name}.zip"))
    stale = f"run python tools/pack.py results/{name}.zip and commit results/{name}.md"
    assert written == (RESULTS / f"{name}.md").read_text(), stale


def test_every_committed_run_is_read_from_its_record_alone_and_comes_from_a_clean_commit():
    """Runs of a tree with uncommitted changes cannot be made again; the page lists old ones."""
    named = (RESULTS / "README.md").read_text().split("uncommitted changes: ")[1].split(".")[0]
    folders = [opened(RESULTS / f"{name}.zip") for name in STUDIES]
    runs = [(home.name, path) for home in folders for path in home.rglob("result.json")]
    assert len(folders) >= 30
    assert len(runs) > 1000
    for name, path in runs:
        assert read_run(path.parent).trouble is None, path
        dirty = json.loads(path.read_text())["commit"].endswith("-dirty")
        assert not dirty or f"`{name}`" in named, path


def test_records_are_few_and_small():
    """Neither weights nor thousands of files: a clone is quick."""
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert len(files) <= 150
    assert sum(path.stat().st_size for path in files) < 60_000_000
    assert {path.name.split(".")[0] for path in RESULTS.glob("*.md")} == {*STUDIES, "README"}


def test_the_audit_of_minilm_says_what_its_curve_shows():
    record = json.loads((RESULTS / "audit-minilm" / "audit.json").read_text())
    points = [Point(**point) for point in record["curve"]]
    best = most_heads(points, record["margin"])
    assert (best.replaced, len(record["order"])) == (42, 72)
    said = sentence(best, 72, record["margin"], record["metric"])
    assert said.split(" (")[0] == record["sentence"].split(" (")[0]
    assert most_heads(points, 1.0).replaced == 48
    control = {point["replaced"]: point["value"] for point in record["control"]}
    for point in points:
        assert point.value > control.get(point.replaced, 0) + 1


def test_tuned_heads_score_what_the_docs_say():
    rows = json.loads((RESULTS / "audit-minilm" / "converted.json").read_text())
    found = {
        (row["model"].split(" --texts")[0], row["split"]): row["spearman"]
        for row in rows
        if "before cosines" not in row["model"]
    }
    for heads, rate, scores in ((48, "1e-4", ("86.70", "83.00")), (72, "4e-4", ("85.02", "80.39"))):
        tuned = f"convert --heads {heads} --tune 200 --tune-all --tune-rate {rate}"
        assert tuple(f"{found[tuned, split]:.2f}" for split in ("validation", "test")) == scores


def test_the_atom_mapping_head_is_called_a_content_head():
    record = json.loads((RESULTS / "audit-rxnmapper" / "audit.json").read_text())
    (head,) = [h for h in record["heads"] if (h["layer"], h["head"]) == (10, 5)]
    assert head["kind"] == "content"
    assert max(head["by_offset"], head["by_position"]) < 0.15


def test_the_audit_of_gemma_says_what_its_curve_shows():
    record = json.loads((RESULTS / "audit-gemma" / "audit.json").read_text())
    best = most_heads([Point(**point) for point in record["curve"]], record["margin"])
    assert best.replaced == 12
    said = sentence(best, 72, record["margin"], record["metric"])
    assert said.split(" (")[0] == record["sentence"].split(" (")[0]
    assert record["most_moved"] == []  # no text of the data set


# The paper.


def test_the_first_table_has_the_papers_order_and_ranks_no_varied_values_together():
    (summary,) = _summarized(RESULTS / "language-modeling.zip")
    specs = list(dict.fromkeys(line.row.spec for line in in_order(summary)))
    assert specs[:4] == ["dot", "fixed_random", "random", "factorized_random"]
    assert specs[-4:] == ["random+dot", "lightconv", "dynamicconv", "none"], "not in it: best first"
    (summary,) = _summarized(RESULTS / "heads.zip")
    lines = in_order(summary)
    assert [*dict.fromkeys(line.row.varied[0] for line in lines)] == [
        f"model.num_heads={heads}" for heads in (1, 2, 4, 8, 16)
    ]
    means = [line.mean for line in lines if line.row.varied == ("model.num_heads=8",)]
    assert means == sorted(means)
    assert len(means) == len(lines) / 5


def test_published_numbers_are_printed_as_published():
    (ours, rerun) = paper_tables("mt-wmt14-ende", ["dot", "random"])
    rows = {row[0]: row[1:] for row in ours.rows}
    assert rows["Synthesizer Factorized Random"] == ("\N{EN DASH}", "61M", "27.30")
    assert rows["Synthesizer Random"] == ("random", "67M", "27.27")
    assert "transcription" in ours.source
    assert "Narang" in rerun.source


def test_the_control_of_a_study_stands_beside_the_papers():
    recipe = load_recipe("tiny-wikitext2")
    control = size_control(make_row("dot", {}, recipe), recipe).label
    (ours, _) = paper_tables("mt-wmt14-ende", ["dot", "random+dot", control])
    rows = {row[0]: row[1] for row in ours.rows}
    assert rows["Transformer (Control)"] == control == "dot, as large as random+dot"
    assert rows["Transformer (our run)"] == "dot"


def test_of_the_linformer_comparison_what_is_known_is_shown():
    (table,) = paper_tables("classification-agnews", ["dot", "linformer"])
    assert [row[-1] for row in table.rows] == ["89.1"]
    assert "nor the rest of the table is known" in table.notes[0]


def test_the_mixture_has_the_papers_columns_in_its_order():
    heads = list(COLUMNS["text_to_text"])
    printed = [head.removeprefix("SuperGLUE ").removeprefix("GLUE ") for head in heads]
    known = [paper()["tables"][name]["columns"].values() for name in ("glue", "superglue")]
    assert printed == [*known[0], *known[1]]
    assert heads[:3] == ["GLUE", "GLUE CoLA", "GLUE SST"]
    keys = [key for keys in COLUMNS["text_to_text"].values() for key in keys]
    assert {f"glue_{task}_{name}" for task in GLUE for name in GLUE[task]} - {*keys} == {
        "glue_wnli_accuracy"
    }


def test_every_paper_key_and_every_column_is_known():
    stored = tomllib.loads((resources.files("synthesizer_attention") / "paper.toml").read_text())
    keys = {load_recipe(name).paper for name in recipe_names()} - {None}
    assert keys <= set(stored["recipes"])
    for choices in stored["recipes"].values():
        for choice in choices:
            columns = stored["tables"][choice["table"]]["columns"]
            assert set(choice.get("columns", [])) <= set(columns)
    for table in stored["tables"].values():
        assert table["source"] in stored["sources"]
        for row in table["rows"]:
            assert set(row) - {"name", "synthesis", "label"} <= set(table["columns"])
            assert normalize_spec(row.get("synthesis", "dot"))
