"""docs/results.md and README.md's table are what the committed records say."""

import importlib.util
import json
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
STALE = "the records or the tables changed: run python tools/results.py and commit what it writes"


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


claims, results, performance, recipes = map(load, ("claims", "results", "performance", "recipes"))


def tables(text):
    return [line for line in text.splitlines() if line.startswith("|")]


@pytest.fixture(scope="module")
def found():
    return results.summaries()


def test_the_readmes_table_is_generated(found):
    readme = (ROOT / "README.md").read_text()
    assert results.with_table(readme, results.main_table(found)) == readme, STALE


def test_the_tables_of_the_page_are_generated(found):
    page = (ROOT / "docs" / "results.md").read_text()
    assert tables(results.page(found)) == tables(page), STALE
    for name, summary in found.items():
        for file in results.pictures(name, summary):
            assert (ROOT / "docs" / "images" / file).exists(), STALE
            assert f"(images/{file})" in page


def test_a_study_appears_once_its_records_are_committed(tmp_path):
    shutil.copy(ROOT / "results" / "shift.zip", tmp_path / "dialogue.zip")
    (tmp_path / "bench").mkdir()
    zipfile.ZipFile(tmp_path / "empty.zip", "w").close()
    found = results.summaries(tmp_path)
    assert list(found) == ["dialogue"]
    page = results.page(found, tmp_path)
    own = results.results_table(found["dialogue"])
    assert f"## Dialogue: DailyDialog\n\n**{found['dialogue'].answer}**" in page.replace("\\", "")
    assert own in page
    assert own in (ROOT / "docs" / "results.md").read_text(), STALE  # as of the record itself
    assert "Not run: dense+dot." in page
    assert "## Language modelling: WikiText-2\n\nNot run: dot, fixed_random" in page
    line = next(line for line in tables(page) if "worst in dialogue" in line)
    assert "| dialogue | undecided at this scale | |" in line.replace("|  |", "| |")
    assert "| Table 3 | summarization | not run |" in page


def test_words_decide_a_claim():
    yes, no = ("better", "no worse"), ("worse",)
    assert claims.decide({"a": "better", "b": "no worse"}, yes, no, 2) == claims.HOLDS
    assert claims.decide({"a": "better", "b": "worse"}, yes, no, 2) == claims.FAILS
    assert claims.decide({"a": "better", "b": "undecided"}, yes, no, 2) == claims.OPEN
    assert claims.decide({"a": "better"}, yes, no, 2) == claims.OPEN, "a row was not run"
    assert claims.decide({}, yes, no, 2) == claims.NOT_RUN


def test_recall_contradicts_and_confirms_claims(found):
    recall = found["recall"]
    assert claims.near("random", "dense")(recall)[0] == claims.FAILS
    assert claims.behind("random", "dense")(recall)[0] == claims.HOLDS
    word, said = claims.all_of(claims.behind("random"), claims.ahead(["dot"], "dense"))(recall)
    assert word == claims.HOLDS
    assert said == "random worse (against dot); dot better (against dense)"


def test_claims_are_judged_by_the_papers_dot_and_by_the_best_one(found):
    """Random beats sinusoidal dot on python-docs, and not the dot product that a search chose."""
    study = found["python-docs"]
    best = study.dot_name
    assert best == "dot, sinusoidal+relative"
    weak, strong = (claims.behind("random")(study, dot) for dot in (claims.DOT, best))
    assert weak == (claims.FAILS, "random better (against dot)")
    assert strong == (claims.HOLDS, f"random worse (against {best})")
    lines = claims.judge_claims({"python-docs": study}, ROOT / "results" / "bench")
    pure = next(line for line in lines if line[0].startswith("Pure Synthesizers are behind"))
    assert pure[3:5] == [claims.FAILS, claims.OPEN]
    assert pure[5].endswith("; not run: factorized_dense, random+dense")
    heads = next(line for line in lines if "several heads" in line[0])
    assert heads[3:] == [claims.NOT_RUN, "", ""]


def test_a_claim_takes_the_row_with_most_of_the_best_dots_settings(found):
    """Tables have its positions, and no start of queries and keys to share."""
    pairs = found["pairs"]
    best = pairs.opponent.label
    assert best == "dot, sinusoidal+relative, equal_qk_init=true"
    labels = [claims.row_of(pairs, spec, best).label for spec in ("random+dot", "random", "dense")]
    assert labels == [
        "random+dot" + best.removeprefix("dot"),
        "random, sinusoidal+relative",
        "dense",
    ]
    assert claims.row_of(pairs, "random").label == "random"
    assert claims.row_of(pairs, "linformer", best) is None


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


def bench_row(variant, seconds, **others):
    row = {"variant": variant, "mode": "train", "view": "causal", "length": 64, "threads": 1}
    spread = {"speed": 1.0, "speed_low": 0.9, "speed_high": 1.1, "flops": 10, "peak_bytes": 8}
    return row | spread | {"best_seconds": seconds} | others


def test_goals_are_met_or_missed_by_the_best_rounds(tmp_path):
    rows = [bench_row("dot", 2.0), bench_row("random", 1.0), bench_row("dense", 4.0)]
    record = {"rows": rows, "plan": {"d_model": 64}}
    (tmp_path / "small-sublayer").mkdir()
    (tmp_path / "small-sublayer" / "bench.json").write_text(json.dumps(record))
    lines = [line for line in performance.goals(tmp_path).splitlines() if "width 64 |" in line]
    met, missed, absent = (
        next(line for line in lines if f"`{name}`" in line)
        for name in ("random", "dense", "random+dot")
    )
    assert "| 2 | 2.00 | 0.90 to 1.10 | 2.07 | met |" in met  # 31 D^2 over 15 D^2
    assert "| 0.50 |" in missed
    assert "**missed**" in missed
    assert "not measured" in absent
