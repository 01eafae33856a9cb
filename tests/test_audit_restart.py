"""Passes that begin late: the bits of whole ones with less work, or else whole ones."""

import random

import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import AlbertConfig, AlbertForMaskedLM

from pretrained import SMALL, TEXT, VOCAB, build, inputs, sentences, spread, tokenizer
from synthesizer_attention.audit import restart
from synthesizer_attention.audit.averages import measure_averages
from synthesizer_attention.audit.cost import Auditor
from synthesizer_attention.audit.examples import BATCH_PADDING, Example, Examples, encode
from synthesizer_attention.audit.hook import Hook


def walked(model, name):
    """What an audit runs: outputs of late and of whole passes, and the calls of modules in each."""
    batch, metric = inputs(name), "agreement"
    if batch.pop("decoder_input_ids", None) is not None:
        metric, batch["labels"] = "loss", torch.randint(3, VOCAB, (2, 5))
    batches = [([0, 1], batch), ([2, 3], {key: value.flip(0) for key, value in batch.items()})]
    examples = Examples(metric, batches, [None] * 4, 0, [("",)] * 4)
    pairs, calls = [], dict.fromkeys(("before", "late", "whole"), 0)
    with torch.no_grad(), Hook(model) as hook:
        hook.discover(examples.probe(model))
        averages = measure_averages(hook, examples.inputs(model), 8)
        auditor = Auditor(hook, averages, "relative")
        exact = auditor.passes.is_exact(examples)

        def count(*_):
            calls[kind] += 1

        def whole(heads):
            hook.tables = auditor.tables(heads)
            found = examples.run(model)
            hook.tables = {}
            return found

        order, steps = random.Random(1).sample(auditor.heads, 6), []
        for base in ([], auditor.heads[1::3]):
            others = [head for head in auditor.heads if head not in base]
            steps += [([*base, head], base, head[0], None) for head in others[::2]]
        steps += [(order[:n], None, None, min(order[n : n + 2])[0]) for n in range(1, 6, 2)]
        handle = register_module_forward_pre_hook(count)
        for heads, base, place, keep in steps:
            kind = "before"
            if base is not None:
                auditor.passes.reach(auditor.tables(base), examples, place)
            kind = "late"
            found = auditor.outputs(heads, examples, keep)
            kind = "whole"
            pairs.append((found, whole(heads)))
        handle.remove()
    return pairs, calls, exact


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "translator", "albert", "full"])
def test_a_pass_that_begins_late_has_the_bits_of_a_whole_one(name, monkeypatch):
    if name == "full":  # no room for any state
        monkeypatch.setattr(restart, "KEPT", 0)
    if name == "albert":  # one attention, called twice
        model = spread(AlbertForMaskedLM(AlbertConfig(**SMALL | TEXT, embedding_size=8)))
    else:
        model = build("bert" if name == "full" else name)
    pairs, calls, exact = walked(model, "bert" if name in ("full", "albert") else name)
    assert exact
    assert all(torch.equal(late, whole) for late, whole in pairs)
    assert name == "full" or calls["late"] < calls["whole"]


@pytest.mark.parametrize("what", ["remembers", "writes"])
def test_a_model_with_other_ways_between_layers_has_the_same_bits(what):
    """By whole passes where it remembers states; again where it writes into what was returned."""
    model, kept = build("bert"), {}
    first, second = model.bert.encoder.layer

    def inside(*states, **options):
        kept["inside"] = states[0] * 2
        return plain(*states, **options)

    if what == "remembers":
        plain, first.forward = first.forward, inside
        second.register_forward_pre_hook(lambda _, args: (kept["inside"], *args[1:]))
    else:
        second.register_forward_pre_hook(lambda _, args: (args[0].mul_(2), *args[1:]))
    pairs, _, exact = walked(model, "bert")
    assert exact is (what == "writes")
    assert all(torch.equal(late, whole) for late, whole in pairs)


def test_a_batch_holds_texts_of_similar_length():
    rows = [Example((text,)) for text in sentences(200)]
    batches = encode(rows, "agreement", build("bert"), tokenizer(), 12).batches
    padding = [int((inputs["attention_mask"] == 0).sum()) for _, inputs in batches]
    assert 0 < max(padding) <= BATCH_PADDING
    assert sorted(place for chosen, _ in batches for place in chosen) == list(range(200))
