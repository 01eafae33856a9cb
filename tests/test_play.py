"""The page in which models run: engine.js against PyTorch, and the page in a real browser."""

import json
import random
import shutil
import subprocess

import pytest
import torch
from tokenizers import normalizers

import browser
from synthesizer_attention.cli import main
from synthesizer_attention.data.tokenizer import Template, encode, train_tokenizer
from synthesizer_attention.errors import UserError
from synthesizer_attention.models import SynthesizerConfig
from synthesizer_attention.models.heads import MODELS
from synthesizer_attention.play import export
from synthesizer_attention.run.recipe_keys import Text
from synthesizer_attention.run.run import Run
from synthesizer_attention.tasks import build_task
from synthesizer_attention.training.finish import load_model
from synthesizer_attention.training.loop import fit
from tiny import SIZE, WORDS, language_model

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")
IDS, TARGETS = [7, 3, 39, 12, 7, 5, 21, 30, 4, 8, 17, 3, 11], [0, 9, 14, 3, 22, 6]
DECODERS = [
    *("dot", "random", "fixed_random", "factorized_random:k=3", "dense", "factorized_dense:a=3"),
    *("relative", "random+dot", "factorized_random+factorized_dense+dense+dot", "none", "none,dot"),
    *("random@2|dense+dot@1", "relative:biased=0@1|dot@2", "lightconv:kernel=5", "dynamicconv"),
    *("dense:share=1", "dot@1|dense:input=head@2", "random+factorized_dense:input=head:share=1"),
]
POSITIONS = ("learned", "relative", "rotary", "alibi", "none", "relative+rotary:base=50:share=0.5")
CASES = [
    *(("decoder", {"synthesis": spec}) for spec in DECODERS),
    *(("decoder", {"synthesis": "random+dot", "positions": kind}) for kind in POSITIONS),
    *(("encoder", {"synthesis": "dense+dot", "positions": kind}) for kind in POSITIONS),
    ("decoder", {"window": 3, "norm_position": "post", "activation": "gelu", "norm": "rms"}),
    ("encoder", {"synthesis": "relative:sinks=2", "window": 3, "pooling": "cls"}),
    ("encoder", {"synthesis": "linformer:k=4"}),
    ("encoder", {"synthesis": "linformer:k=4:share_heads=0:share_kv=1,dynamicconv:kernel=4"}),
    ("encoder_decoder", {"synthesis": "dense", "positions": "relative", "decoder_max_len": 11}),
    ("encoder_decoder", {"decoder_synthesis": "random,none", "tie_word_embeddings": False}),
    ("encoder", {"universal": True, "fixed_depth": True, "positions": "learned+relative"}),
    ("decoder", {"synthesis": "random+dot", "universal": True, "norm_position": "post"}),
    ("encoder_decoder", {"synthesis": "dense", "universal": True, "num_layers": 3}),
    ("encoder_decoder", {"synthesis": "factorized_random:k=3+dot", "window": 3,
                         "positions": "relative+rotary"}),
    ("encoder_decoder", {"decoder_synthesis": "relative,factorized_dense:a=3"}),
    ("encoder_decoder", {"decoder_synthesis": "dynamicconv:kernel=4,lightconv:kernel=3"}),
]  # fmt: skip
ASK = """
const {engine, asked} = JSON.parse(require("fs").readFileSync(0, "utf8"));
const {readTensors, Model, Tokenizer} = require(engine);
Promise.all(asked.map(async ({entry, ids, targets, swaps, tokenizer, texts}) => {
  if (tokenizer) {
    const coder = new Tokenizer(tokenizer);
    return texts.map((text) => coder.encode(text)).map((tokens) => ({
      ids: tokens.map((token) => token.id), text: coder.decode(tokens.map((token) => token.id)),
      bytes: tokens.flatMap((token) => [...token.bytes])}));
  }
  const model = new Model(entry.config, await readTensors(entry.tensors));
  const {logits, kept} = model.forward(ids, targets, swaps);
  const answer = targets ? model.forward(ids, null, swaps).rows.slice(1) : null;
  return {logits: [...logits], weights: kept.map((one) => [...one.weights]), answer};
})).then((answers) => console.log(JSON.stringify(answers)));
"""


def ask_node(*asked):
    """What engine.js answers."""
    given = json.dumps({"engine": str(export.HERE / "engine.js"), "asked": asked})
    done = subprocess.run(
        [NODE, "-e", ASK], input=given, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def build(kind, **changes):
    """A model whose every number matters: near-zero tables hide bugs."""
    size = {"d_model": 24, "num_heads": 3, "num_layers": 2, "d_ff": 32, "max_len": 17}
    config = SynthesizerConfig(kind=kind, vocab_size=40, num_labels=4, **(size | changes))
    torch.manual_seed(3)
    model = MODELS[kind](config).eval()
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data.add_(0.3 * torch.randn_like(tensor))
    return model


def packed(model, dtype, **more):
    tensors = export.tensors_of(model) | more
    return {**export.describe(model, "it"), "tensors": export.pack(tensors, "it", dtype)}


def computed(model, **options):
    given = {"input_ids": torch.tensor([IDS])}
    if model.config.kind == "encoder_decoder":
        given["decoder_input_ids"] = torch.tensor([TARGETS])
    with torch.no_grad():
        return model(**given, **options)


@pytest.fixture(scope="module")
def answers():
    """Of every case its model, and what one process of node computes in float32 and float16."""
    models = [build(kind, **changes) for kind, changes in CASES]
    found = iter(ask_node(*(
        {"entry": packed(model, dtype), "ids": IDS,
         "targets": TARGETS if model.config.kind == "encoder_decoder" else None}
        for model in models for dtype in ("float32", "float16")
    )))  # fmt: skip
    return [(model, next(found), next(found)) for model in models]


@needs_node
@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda case: str(CASES[case]))
def test_javascript_computes_what_torch_computes(case, answers):
    model, exact, rounded = answers[case]
    kind = model.config.kind
    targets = TARGETS if kind == "encoder_decoder" else None
    logits = computed(model).logits
    logits = logits if kind == "encoder" else logits[0]
    found = torch.tensor(exact["logits"]).view_as(logits)
    torch.testing.assert_close(found, logits, rtol=0, atol=2e-5)
    halved = torch.tensor(rounded["logits"]).view_as(logits)
    assert halved.argmax(-1).equal(logits.argmax(-1))
    specs = f"{model.config.synthesis} {model.config.decoder_synthesis}"
    if "conv" not in specs and "linformer" not in specs:
        out = computed(model, output_attentions=True)
        expected = list(out.get("attentions") or out.get("encoder_attentions") or ())
        both = (out.get("decoder_attentions") or (), out.get("cross_attentions") or ())
        for own, cross in zip(*both, strict=True):
            expected += [own, cross]
        expected = [weights for weights in expected if weights is not None]
        assert len(exact["weights"]) == len(expected)
        for weights, own in zip(exact["weights"], expected, strict=True):
            torch.testing.assert_close(torch.tensor(weights), own.flatten(), rtol=0, atol=2e-5)
    if targets:
        written = model.generate(torch.tensor([IDS]), max_new_tokens=10, do_sample=False)[0, 1:]
        end = model.config.eos_token_id
        written = written.tolist()
        written = written[: written.index(end)] if end in written else written
        assert exact["answer"][: len(written)] == written


@needs_node
def test_a_swapped_head_takes_the_mean():
    """With the model's own weights as the mean nothing changes; with others only what must."""
    model = build("decoder", synthesis="dot")
    out = computed(model, output_attentions=True)
    at = "decoder.0"
    size = model.config.max_len
    own = torch.zeros(3, size, size)
    own[:, : len(IDS), : len(IDS)] = out.attentions[0][0]
    other = torch.rand(3, size, size)
    asked = [
        {"entry": packed(model, "float32", **{f"mean.{at}": mean}), "ids": IDS, "swaps": {at: [1]}}
        for mean in (own, 7 * other)
    ]
    same, changed = ask_node(*asked)
    torch.testing.assert_close(
        torch.tensor(same["logits"]), out.logits.flatten(), rtol=0, atol=2e-5
    )
    weights = torch.tensor(changed["weights"][0]).view(3, len(IDS), len(IDS))
    mean = other[1, : len(IDS), : len(IDS)].tril()
    torch.testing.assert_close(weights[1], mean / mean.sum(-1, keepdim=True), rtol=0, atol=1e-5)
    torch.testing.assert_close(weights[0], out.attentions[0][0, 0], rtol=0, atol=1e-5)


TEXTS = [
    *("the old cat sees 12 dogs.", " it's  they'll\tI'd 're", "a\r\nb\r\n\r\n c", "\n\n x"),
    *("", "  ", "naïve Ünïcödé 日本語 テスト", "e\u0301 \u0130 ß", "x\u0085y\u00a0z\u2003w\ufeffv"),
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 ok \U0001f44d\U0001f3fd!",
    *("½ ² ٣ Ⅷ", "a\x1cb\x00c", "<extra_id_0> and <extra_id_10>x </s>", "don't<extra_id_1>."),
]  # fmt: skip


@needs_node
def test_javascript_tokenizes_as_the_tokenizer_does():
    cases = [(kind, sentinels) for kind in ("byte", "word", "bpe") for sentinels in (0, 12)]
    tokenizers = [
        train_tokenizer(
            Text(kind=kind, vocab_size=400),
            [[*TEXTS, " ".join(WORDS)] * 3],
            Template("", "", sentinels),
        )
        for kind, sentinels in cases
    ]
    answers = ask_node(
        *({"tokenizer": export.describe_tokenizer(one, "it"), "texts": TEXTS} for one in tokenizers)
    )
    for case, tokenizer, found in zip(cases, tokenizers, answers, strict=True):
        assert [one["ids"] for one in found] == encode(tokenizer, TEXTS), case
        for one, text in zip(found, TEXTS, strict=True):
            spelled = text if case[0] != "word" or text.strip() else ""
            assert bytes(one["bytes"]).decode() == spelled, case


def test_what_the_page_cannot_run_is_refused_by_name():
    with pytest.raises(UserError, match="not 'sliding:size=4'; leave it out"):
        export.describe(build("decoder", synthesis="dot", window="sliding:size=4"), "it")
    packaged = build("decoder", synthesis="dot")
    packaged.config.imports = ["some_package"]
    with pytest.raises(UserError, match=r"functions of your own \(some_package\); leave it out"):
        export.describe(packaged, "it")
    tokenizer = train_tokenizer(Text(kind="byte", vocab_size=300), [["a"]])
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises(UserError, match=r"the tokenizer of it \(BPE after ByteLevel\)"):
        export.describe_tokenizer(tokenizer, "it")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Two language models that differ in more than the synthesis, a translator, a classifier."""
    home, rng = tmp_path_factory.mktemp("play"), random.Random(0)
    rows = [" ".join(rng.choices(WORDS, k=rng.randint(2, 4))) for _ in range(60)]
    tables = {
        "pairs": lambda text: {"en": text, "de": text.upper()},
        "labels": lambda text: {"text": text, "label": "cat" if "cat" in text else "<b>"},
    }
    for name, row in tables.items():
        lines = "".join(json.dumps(row(text)) + "\n" for text in rows)
        (home / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    few = [*(f"model.{size}" for size in SIZE), "train.steps=4", "train.warmup=1"]
    few += ["text.vocab_size=300", "evaluate.every=4", "evaluate.limit=4", "evaluate.beam=1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYNTHESIZER_CACHE", str(home / "cache"))
        patch.setattr(export, "MEAN_TOKENS", 500)
        for spec, changes in {"random+dot": (), "dense": ("train.lr=0.5",)}.items():
            relative = ("model.positions=relative", *changes)
            fit(language_model(home, *relative, synthesis=spec), Run(home / spec))
        for task, file in {"translation": "pairs", "classification": "labels"}.items():
            keys = [
                word for key in (*few, f"data.train={home / file}.jsonl") for word in ("--set", key)
            ]
            out = str(home / task)
            assert main(["train", task, "--synthesis", "dot", "--out", out, "--plain", *keys]) == 0
        names = ("random+dot", "dense", "translation", "classification")
        runs = [str(home / name) for name in names]
        assert main(["play", *runs, "--out", str(home / "play.html")]) == 0
    return home / "play.html"


def data_of(page):
    text = page.read_text(encoding="utf-8")
    return json.loads(text.split('id="models">')[1].split("</script>")[0])


def test_the_page_says_where_recipes_differ_in_more_than_the_synthesis(page):
    language, translation, labels = data_of(page)
    assert [entry["label"] for entry in language["models"]] == ["random+dot", "dense"]
    assert [entry["differs"] for entry in language["models"]] == [[], ["train.lr: 0.001 -> 0.5"]]
    assert translation["kind"] == "encoder_decoder"
    assert language["models"][0]["score"].startswith("test bits per byte ")
    assert labels["labels"] == ["<b>", "cat"]


def test_a_mean_is_that_of_train_texts(page, monkeypatch):
    monkeypatch.setenv("SYNTHESIZER_CACHE", str(page.parent / "cache"))
    monkeypatch.setattr(export, "MEAN_TOKENS", 1)  # the first batch alone
    run = Run(page.parent / "translation")
    model, task = load_model(run), build_task(run.recipe(), tokenizer_dir=run.model)
    means, count = export.mean_weights(model, task)
    batch = next(iter(task.train_batches()))
    assert count == batch.num_tokens
    with torch.no_grad():
        out = model(**batch.inputs, output_attentions=True)
    weights, real = out.encoder_attentions[0], batch.inputs["attention_mask"]
    for row in range(3):
        sums = [weights[b, 1, row] for b in range(len(real)) if real[b, row]]
        found = means["mean.encoder.0"][1, row, : weights.shape[-1]]
        torch.testing.assert_close(found, torch.stack(sums).mean(0), rtol=1e-4, atol=1e-6)


def test_functions_of_ones_own_are_refused(page, tmp_path, capsys):
    recipe = (page.parent / "dense" / "recipe.toml").read_text(encoding="utf-8")
    changed = recipe.replace("imports = []", 'imports = ["mine"]')
    (tmp_path / "recipe.toml").write_text(changed, encoding="utf-8")
    assert main(["play", str(tmp_path), "--out", str(tmp_path / "play.html")]) == 2
    said = f"play does not run functions of your own (mine); leave {tmp_path} out\n"
    assert capsys.readouterr().err == f"synthesizer: error: {said}"
    assert not (tmp_path / "play.html").exists()


def test_a_report_has_the_live_page_of_its_models_beside_it(page, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SYNTHESIZER_CACHE", str(page.parent / "cache"))
    monkeypatch.setattr(export, "MEAN_TOKENS", 1)
    home = tmp_path / "runs"
    shutil.copytree(page.parent / "dense", home / "dense")
    shutil.copytree(page.parent / "random+dot", home / "packed")
    shutil.rmtree(home / "packed" / "model")
    assert main(["report", str(home), "--live"]) == 0
    assert f"not on the live page: {home / 'packed'}: model/" in capsys.readouterr().err
    (only,) = data_of(home / "play.html")
    assert [entry["label"] for entry in only["models"]] == ["dense"]
    assert '<a href="play.html">Run these models' in (home / "report.html").read_text()
    shutil.rmtree(home / "dense" / "model")
    (home / "play.html").unlink()
    assert main(["report", str(home / "dense"), "--live"]) == 2
    told = f"--live needs trained models and {home / 'dense'} has none, as packed records have; "
    assert told in capsys.readouterr().err
    assert not list(home.rglob("play.html"))


TYPE = """(() => { const box = document.getElementById("text"); box.value = %s;
  box.dispatchEvent(new Event("input")); return document.getElementById("cards").innerText; })()"""
HOVER = """(() => { const tokens = document.querySelectorAll("#queries button");
  tokens[3].dispatchEvent(new PointerEvent("pointerenter"));
  return document.getElementById("readout").textContent; })()"""
CELL = """(() => { const map = document.querySelector("#panel svg");
  const box = map.getBoundingClientRect();
  const scale = box.width / map.viewBox.baseVal.width, at = +map.dataset.margin;
  map.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + (at + 15) * scale,
    clientY: box.top + (at + 25) * scale}));
  return document.getElementById("readout").textContent; })()"""
SWAP = (
    """document.getElementById("swap").click(); document.querySelector("#cards .cost").innerText"""
)
TAB = """document.querySelectorAll("#tabs button")[%d].click();
  document.getElementById("cards").innerText"""
LINK = """new Promise((resolve) => {
  addEventListener("hashchange", () => resolve(document.querySelector("#panel h2").innerText
    + "; " + document.getElementById("readout").textContent));
  location.hash = "#task=0&text=a+dog&model=1&head=1&query=2"; })"""
CAPTIONS = """[...document.querySelectorAll("#panel figcaption")]
  .map((caption) => caption.innerText).join("|")"""
ALPHA = "\N{GREEK SMALL LETTER ALPHA}"


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_the_page_works_in_a_browser(page, tmp_path, width, scheme):
    if browser.PATH is None:
        pytest.skip("no Chromium")
    saved = "document.querySelector('#panel figcaption button').click(); location.hash"
    wide = "document.documentElement.scrollWidth"
    cross = "location.hash = '#task=1&map=2'; follow(); document.getElementById('swap') === null"
    ask = ("started.then(() => 1)", TYPE % '"the <i>cat\\u{1f600}"', HOVER, CELL, CAPTIONS, SWAP,
           saved, wide, TAB % 1, wide, cross, TAB % 2, wide, TYPE % '""', LINK)  # fmt: skip
    seen = browser.look(page, tmp_path / "profile", width=width, scheme=scheme, ask=ask)
    _, typed, hovered, cell, captions, swapped, url, *rest, _, linked = seen.answers
    assert "bits per byte on your text" in typed
    assert "Not only the synthesis differs from random+dot: train.lr: 0.001 -> 0.5" in typed
    assert hovered.startswith("i (4) \N{RIGHTWARDS ARROW} ")  # the first three bytes are cut off
    assert cell.startswith("< (3) \N{RIGHTWARDS ARROW} \N{OPEN BOX} (2) 0.")
    alphas = [part.split(f"{ALPHA} ")[1][:4] for part in captions.split("|") if ALPHA in part]
    assert len(alphas) == 2
    assert sum(map(float, alphas)) == pytest.approx(1, abs=0.011)
    assert "positions" in captions
    assert "bits per byte (" in swapped
    assert "swap=0%2Fdecoder.0%2F0" in url
    first, _, second, no_swap_of_cross_attention, labels, third = rest
    assert max(first, second, third, seen.width) <= width
    assert no_swap_of_cross_attention
    assert "<b>" in labels
    assert linked.startswith("dense, decoder layer 1: dense, head 2; \N{OPEN BOX} (3) ")
    assert seen.complaints == []
    assert seen.requests == [page.as_uri()]
