import json
from dataclasses import replace

from matplotlib.axes import Axes

from synthesizer_attention.report.notes import notes
from synthesizer_attention.report.page import page
from synthesizer_attention.report.plots import by_value, quality_and_cache
from synthesizer_attention.report.summary import scope
from synthesizer_attention.report.tables import varied_table
from synthesizer_attention.report.write import lead, sections, summarize_all
from test_report import make_run

SHARES = {  # of right answers, by difficulty: a table lasts as long as its heads
    "dot": {"2": 0.99, "8": 0.98},
    "random": {"2": 0.99, "8": 0.4},
    "random+dot": {"2": 0.99, "8": 0.98},
}
CACHE = {"dot": 1024, "random": 512, "random+dot": 1024}


def probe_study(home):
    rows = []
    for spec, shares in SHARES.items():
        for value, share in shares.items():
            changes = (f"data.difficulty={value}",)
            runs = [f"{spec}-difficulty-{value}/seed{seed}" for seed in (1, 2, 3)]
            for seed, run in enumerate(runs, start=1):
                options = {"recipe": "distance-copying", "sets": changes}
                path = make_run(home / run, spec, seed, share, **options)
                stored = json.loads((path / "result.json").read_text())
                stored["cache_bytes_per_token"] = CACHE[spec]
                (path / "result.json").write_text(json.dumps(stored))
            label = f"{spec}, difficulty {value}"
            rows.append({"label": label, "spec": spec, "runs": runs, "varied": changes})
    study = {"rows": rows, "recipe": "distance-copying"}
    (home / "study.json").write_text(json.dumps(study))
    (summary,) = summarize_all([home])
    return summary


def test_every_varied_value_has_an_answer_of_its_own(tmp_path):
    summary = probe_study(tmp_path)
    assert summary.answer.startswith(
        "On distance-copying, it depends on difficulty: no at 2 (random is no worse than dot "
        "product), yes at 8 (the one row without dot product is worse); margin "
    )
    told = "\n".join(notes(summary))
    assert "Each varied value is judged alone, with its own dot and its own 5%." in told
    assert "each varied value has its own dot product" in told


def test_accuracy_is_drawn_against_difficulty_and_quality_against_the_cache(tmp_path):
    summary = probe_study(tmp_path)
    first = page("", [], lead(summary))
    assert "token accuracy, % by difficulty, one line per variant" in first
    assert "Means over seeds, by data.difficulty; small open marks beside them are" in first
    assert "Pareto front" not in first, "scores of two difficulties are not of one task"
    (varied,) = [s.blocks[0] for s in sections(summary) if s.heading == "By varied value"]
    assert "difficulty 8" in varied.markdown()
    assert by_value(summary, {"dot": [("2", [1.0])]}, "difficulty") == "", "one value is no curve"
    assert "Quality against the cache of a token" in quality_and_cache(summary)


def test_a_seed_that_failed_is_seen_beside_the_mean(tmp_path, monkeypatch):
    drawn = []
    whole = Axes.plot

    def plot(axes, *args, **look):
        drawn.append((list(args[0]), list(args[1])))
        return whole(axes, *args, **look)

    monkeypatch.setattr(Axes, "plot", plot)
    by_value(probe_study(tmp_path), {"dot": [("2", [100.0]), ("8", [100.0, 25.0])]}, "difficulty")
    assert drawn == [([0, 1], [100.0, 62.5]), ([0.04], [100.0]), ([1.04] * 2, [100.0, 25.0])]


def test_rows_that_keep_as_much_of_a_token_are_not_drawn_by_it(tmp_path, monkeypatch):
    monkeypatch.setitem(CACHE, "random", 1024)
    assert quality_and_cache(probe_study(tmp_path)) == ""


def test_the_scope_names_all_varied_values(tmp_path):
    """It named those of the first row."""
    assert "; difficulty 2, 8; seeds 1, 2, 3. Only self-attention" in probe_study(tmp_path).scope
    recipe = {"name": "a", "model": {"num_layers": 2, "d_model": 64, "num_heads": 1, "max_len": 9}}
    recipe["train"] = {"batch_tokens": 10, "steps": 20}
    assert "of width 64, 1, 2 or 4 heads, length 9; 20 steps of 10 tokens on a; seed 1." in scope(
        recipe, [1], {"num_heads": ["1", "2", "4"]}
    )
    assert "width 64, 1 head, length 9" in scope(recipe, [1], {})
    many = [1, 2, 3, 4, 5, 8, 1001, 1002]
    assert "; seeds 1 to 5, 8, 1001, 1002." in scope(recipe, many, {})


def test_a_loss_by_value_is_drawn_with_the_better_up_and_as_finely_as_the_results(
    tmp_path, monkeypatch
):
    summary = probe_study(tmp_path)
    loss = replace(summary, metric="bits_per_byte", higher_is_better=False)
    monkeypatch.setattr(
        "synthesizer_attention.report.load.Row.scores",
        lambda row, key: {1: 4.7312, 2: 4.7316},
    )
    head, lines = varied_table(loss)
    assert head == ["variant", "difficulty 2", "difficulty 8"]
    assert lines[0] == ["dot", "4.731 ± 0.000", "4.731 ± 0.000"]
    inverted = []
    monkeypatch.setattr("matplotlib.axes.Axes.invert_yaxis", lambda axes: inverted.append(axes))
    points = {"dot": [("2", [1.0]), ("8", [2.0, 2.5])]}
    for drawn, expected in ((summary, 0), (loss, 1)):
        assert "by difficulty" in by_value(drawn, points, "difficulty")
        assert len(inverted) == expected
