"""The fast paths in other types and lengths than the contract's, and what they cost."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

import synthesizer_attention
from synthesizer_attention.attention import fast, hook, masks
from synthesizer_attention.attention.layer import SyntheticAttention
from synthesizer_attention.attention.masks import COUNTED
from synthesizer_attention.attention.registry import build_synthesis
from synthesizer_attention.attention.synthesis import numbers_by_distance
from synthesizer_attention.attention.terms import add_diagonals, lay_out
from synthesizer_attention.errors import UserError
from test_contract import small_blocks
from variants import EVERY, GROUPS, SIZE, TABLES, redrawn, tokens

H, D = 3, 12
ANY_LENGTH = [spec for spec in EVERY if spec != "factorized_dense:a=2:b=4"] + [
    "factorized_dense:a=2"
]
MASKS = ("none", "right", "left", "holes", "nothing real")
every_synthesis = pytest.mark.parametrize("spec", ANY_LENGTH)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4, torch.bfloat16: 6e-2}


def attention(spec, *, length=7, max_len=None, causal=False, dropout=0.0, path="fast"):
    max_len = max_len or length
    built = SyntheticAttention(D, H, max_len, spec, causal=causal, dropout=dropout, path=path)
    return redrawn(built)


def mask_of(kind, batch, length):
    if kind == "none":
        return None
    mask = torch.zeros(batch, length, dtype=torch.bool)
    for b in range(batch):
        real = max(1, length - b * length // (batch + 1) - (b + 1) // 2)
        mask[b, : real if kind == "right" else length] = True
        if kind == "left":
            mask[b, : length - real] = False
        elif kind == "holes":
            mask[b, b % 2 :: 3] = False
        elif kind == "nothing real" and b == 0:
            mask[b] = False
    return mask


def results(layer, x, path, **given):
    """The output, and the gradients of the input and of every parameter."""
    layer.path = path
    layer.zero_grad()
    x = x.detach().requires_grad_()
    y = layer(x, **given)
    spread = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape)
    (y * spread.to(y.dtype)).sum().backward()
    grads = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return {"output": y.detach(), "input": x.grad, **grads}


def assert_equal_paths(layer, x, **given):
    """Number by number; in bfloat16 on the whole, for a sum near zero may fall on either side of a
    relu, and with it the gradient of one weight.
    """
    plain, quick = results(layer, x, "plain", **given), results(layer, x, "fast", **given)
    bound = TOLERANCE[x.dtype]
    for name, expected in plain.items():
        largest = bound * max(1.0, float(expected.abs().max()))
        if x.dtype == torch.bfloat16:
            error = (quick[name] - expected).double().square().mean().sqrt()
            assert error <= largest, f"{name}: {error}"
            continue
        torch.testing.assert_close(
            quick[name], expected, rtol=bound, atol=largest, msg=lambda m, n=name: f"{n}: {m}"
        )


def path_of(layer, x, **given):
    """Which path a call would take."""
    told = {"causal": layer.causal, "window": layer.window}
    keys, values = layer.synthesis.keys(x), x.unflatten(-1, (H, -1)).transpose(1, 2)
    call = fast.dispatch.Call(x, keys, values, **{**told, **given}, frozen=layer.frozen)
    return fast.dispatch.choose(layer.synthesis, call, layer.path).path


@settings(max_examples=120, deadline=None)
@given(
    spec=st.sampled_from([*ANY_LENGTH, *GROUPS]),
    window=st.sampled_from([None, None, 3]),
    small=st.booleans(),
    kind=st.sampled_from(MASKS),
    causal=st.booleans(),
    batch=st.integers(1, 3),
    length=st.sampled_from([1, 2, 23, 70]),
    longer=st.sampled_from([0, 3]),
    dtype=st.sampled_from([torch.float64, torch.float64, torch.float32, torch.bfloat16]),
    biased=st.booleans(),
)
def test_fast_equals_plain(spec, window, small, kind, causal, batch, length, longer, dtype, biased):
    layer = attention(spec, length=length, max_len=length + longer, causal=causal).to(dtype)
    layer.window = window
    if dtype == torch.bfloat16:  # so small that neither path's rounding is amplified
        for parameter in layer.parameters():
            parameter.data *= 0.3
    x, bias = tokens(batch, length, D).to(dtype), None
    if biased:
        bias = tokens(1, H, length, length).to(dtype)
    with small_blocks() if small else nullcontext():
        assert_equal_paths(layer, x, attention_mask=mask_of(kind, batch, length), bias=bias)


@pytest.mark.parametrize(
    "given", [{"bias": torch.zeros(1, H, 7, 7)}, {"dropout": 0.1}, {"x": tokens(2, 3, D)}]
)
def test_what_belongs_to_slots_keeps_tokens_where_they_are(given):
    layer, x = attention("random", causal=True), tokens(2, 7, D)
    values = x.unflatten(-1, (H, -1)).transpose(1, 2)
    told = {"x": x, "keys": None, "values": values, "causal": True, "mask": mask_of("left", 2, 7)}
    call = fast.dispatch.Call(**{**told, "source": COUNTED, **given})
    assert fast.dispatch.choose(layer.synthesis, call, "fast").path == "plain"


@every_synthesis
@pytest.mark.parametrize("kind", ["none", "right"])
def test_large_logits_stay_exact(spec, kind):
    """Logits of 1e4 underflow a shared softmax; where they do, the plain path is taken."""
    layer, x = attention(spec, length=9, causal=True), tokens(2, 9, D)
    for parameter in [*layer.synthesis.parameters(), *layer.synthesis.buffers()]:
        parameter.data *= 1e4 if parameter.shape[-1] == 9 else 30.0
    assert_equal_paths(layer, x, attention_mask=mask_of(kind, 2, 9))


def test_what_an_example_sees_may_vanish_from_the_shared_softmax():
    layer = attention("random", length=3)
    layer.synthesis.table.data[..., 2] = 1e4
    x, mask = tokens(2, 3, D), torch.tensor([[True, True, True], [True, True, False]])
    assert_equal_paths(layer, x, attention_mask=mask)
    assert layer(x, attention_mask=mask).abs().sum(-1).min() > 1e-3


@every_synthesis
def test_an_empty_batch_gives_an_empty_result(spec):
    for path in ("plain", "fast"):
        layer = attention(spec, causal=True, path=path)
        assert layer(tokens(0, 7, D)).shape == (0, 7, D)
        assert layer(tokens(0, 7, D), attention_mask=torch.ones(0, 7)).shape == (0, 7, D)


def test_a_row_is_fused_where_nothing_is_hidden_and_no_gradient_wanted():
    layer, x = attention("random+dot", length=1, max_len=7, path="auto"), tokens(2, 1, D)
    assert path_of(layer, x) == "plain"
    with torch.no_grad():
        assert path_of(layer, x) == "row"
        assert path_of(layer, x, mask=torch.ones(2, 1, dtype=torch.bool)) == "plain"
        assert path_of(layer, x, window=3) == "plain"
        with torch.autocast("cpu", torch.bfloat16):
            assert path_of(layer, x) == "plain"
        assert path_of(attention("factorized_dense", path="auto"), x) == "plain"


@pytest.mark.parametrize("spec", TABLES)
@pytest.mark.parametrize("kind", ["none", "right"])
def test_dropout_draws_the_same_weights_as_the_plain_path(spec, kind):
    layer, x = attention(spec, causal=True, dropout=0.4), tokens(2, 7, D)
    mask = mask_of(kind, 2, 7)
    outputs = {}
    for path in ("plain", "fast"):
        torch.manual_seed(5)
        outputs[path] = results(layer, x, path, attention_mask=mask)
    for name, expected in outputs["plain"].items():
        torch.testing.assert_close(outputs["fast"][name], expected)


def test_dropout_on_pairs_takes_the_plain_path():
    layer, x = attention("random+dot", dropout=0.1), tokens(1, 7, D)
    assert path_of(layer, x, dropout=0.1) == "plain"
    assert path_of(layer, x) == "blocks"


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ("dot", "fused"),
        ("random", "table"),
        ("random+factorized_random", "table"),
        ("dense", "blocks"),
        ("factorized_dense", "blocks"),
        ("random+dot", "blocks"),
        ("factorized_dense+factorized_dense", "plain"),
    ],
)
def test_the_terms_of_a_spec_decide_its_path(spec, path):
    assert path_of(attention(spec), tokens(2, 7, D)) == path


@pytest.mark.parametrize(
    ("spec", "paths"),
    [
        ("random", ["table", "plain", "table", "table"]),
        ("random+dot", ["plain", "short", "short", "blocks"]),
        ("factorized_dense", ["plain", "short", "short", "blocks"]),
        ("dot", ["fused"] * 4),
    ],
)
def test_few_queries_go_where_blocks_would_only_cost(spec, paths):
    layer = attention(spec, length=130, causal=True, path="auto")
    assert [path_of(layer, tokens(2, length, D)) for length in (1, 64, 128, 129)] == paths


def test_an_unknown_path_is_refused():
    with pytest.raises(UserError, match="path='quick'; choose from auto, fast, plain"):
        SyntheticAttention(D, H, 7, "random", path="quick")


@pytest.mark.parametrize(
    "thaw",
    [
        lambda layer: layer.train(),
        lambda layer: layer.resize(9),
        lambda layer: layer.double(),
        lambda layer: layer.load_state_dict(layer.state_dict()),
    ],
)
def test_what_may_change_a_table_drops_what_was_held(thaw):
    layer = attention("random").eval()
    layer.freeze()
    assert layer.frozen is not None
    thaw(layer)
    assert layer.frozen is None


def test_a_frozen_table_still_gets_its_gradient():
    layer, x = attention("random").eval(), tokens(2, 7, D)
    layer.freeze()
    layer(x).sum().backward()
    assert layer.synthesis.table.grad.abs().sum() > 0


def test_freezing_while_training_is_refused():
    with pytest.raises(UserError, match=r"freeze\(\) is for inference"):
        attention("random").freeze()


def test_freezing_holds_nothing_where_tokens_have_a_say():
    layer = attention("random+dot").eval()
    layer.freeze()
    assert layer.frozen is None


def saved_bytes(layer, x, **given):
    """What one forward pass keeps for backward, parameters and buffers apart, each storage once."""
    storages, own = {}, {p.untyped_storage().data_ptr() for p in layer.state_dict().values()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        y = layer(x, **given)
    del y
    return sum(storages.values())


@pytest.mark.parametrize("spec", ["dot", "dense", "factorized_dense", "random+dot", "dense+dot"])
def test_no_pair_of_every_example_is_kept_for_backward(spec):
    batch, heads, length, width = 8, 8, 512, 64
    layer = SyntheticAttention(width, heads, length, spec, causal=True)
    x = torch.randn(batch, length, width, requires_grad=True)
    tables = 4 * heads * length**2
    assert saved_bytes(layer, x) < tables + 20 * 4 * x.numel() < batch * tables / 2


@pytest.mark.parametrize("spec", ["random", "fixed_random", "factorized_random"])
def test_a_table_is_kept_once_for_all_examples(spec):
    heads, length, width = 8, 512, 64
    layer = SyntheticAttention(width, heads, length, spec, causal=True)
    x = torch.randn(16, length, width, requires_grad=True)
    half, whole = saved_bytes(layer, x[:8]), saved_bytes(layer, x)
    per_example = (whole - half) / 8
    assert half - 8 * per_example <= 4 * heads * length**2
    assert per_example <= 4 * 4 * length * width


def test_what_is_kept_of_a_rule_serves_inference_stand_ins_and_training():
    """Ranges without a mask are kept from call to call, and never as one kind of call made them."""
    layer, x = attention("random+dot", length=7, causal=True, path="auto"), tokens(2, 7, D)
    layer.requires_grad_(False)
    masks.known_visibility.cache_clear()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert layer(mode.from_tensor(x)).shape == x.shape
    assert masks.known_visibility.cache_info().currsize == 0
    with torch.inference_mode():
        layer(x)
    kept = masks.known_visibility(7, 7, True, None, x.device)
    assert masks.known_visibility.cache_info().currsize == 1
    assert not kept.stops.is_inference()
    layer.requires_grad_(True)
    expected = results(layer, x, "plain")
    for name, found in results(layer, x, "fast").items():
        torch.testing.assert_close(found, expected[name])


@pytest.mark.parametrize("spec", ["dot", "random", "random+dot", "dense"])
def test_long_sequences_take_a_path_that_skips_what_is_hidden(spec):
    layer = attention(spec, length=300, causal=True, path="auto").float()
    layer.window = 5
    x = tokens(2, 300, D).float()
    values = x.unflatten(-1, (H, -1)).transpose(1, 2)
    call = fast.dispatch.Call(x, layer.synthesis.keys(x), values, causal=True, window=5)
    path = fast.dispatch.choose(layer.synthesis, call).path
    assert path == ("table" if spec == "random" else "blocks")
    rule = (None, 300, 300, True, 5, masks.SLOT, x.device)
    spans = [span for _, (span,) in masks.visibility_of(*rule).row_blocks(300, 300, 300)]
    assert max(span.last - span.first for span in spans) == masks.FEWEST_ROWS + 4
    expected = layer(x)
    layer.path = "plain"
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)


BLOCKS = [(5, 5, 0, 5, 0, 5), (5, 9, 0, 5, 0, 9), (1, 6, 0, 1, 0, 6), (1, 1, 0, 1, 0, 1)]
BLOCKS += [(7, 9, 2, 5, 0, 4), (7, 9, 6, 7, 0, 9), (7, 9, 0, 3, 2, 9), (9, 9, 3, 9, 8, 9)]


@pytest.mark.parametrize(("num_queries", "num_keys", "top", "bottom", "left", "right"), BLOCKS)
def test_diagonals_are_laid_out_and_summed_as_pair_by_pair(
    num_queries, num_keys, top, bottom, left, right
):
    part = redrawn(build_synthesis("relative", SIZE))  # of 7: nine keys read its ends
    rows, keys, reach = slice(top, bottom), slice(left, right), SIZE.max_len - 1
    numbers = numbers_by_distance(part, num_queries, num_keys)
    found = lay_out(numbers, num_queries, rows, keys)
    weight = tokens(H, bottom - top, right - left, seed=5)
    total, expected = torch.zeros_like(numbers), torch.zeros_like(numbers)
    add_diagonals(total, weight, num_queries, rows, keys)
    for h in range(H):
        for i in range(top, bottom):
            for j in range(left, right):
                distance = j - (num_keys - num_queries + i)
                right_one = part.offsets[h, max(-reach, min(reach, distance)) + reach]
                right_one = part.first[h, 0] if j == 0 else right_one
                assert found[h, i - top, j - left] == right_one
                read = 0 if j == 0 else distance + num_keys
                expected[h, read] += weight[h, i - top, j - left]
    torch.testing.assert_close(total, expected)
    (by_autograd,) = torch.autograd.grad((found * weight).sum(), numbers)
    torch.testing.assert_close(by_autograd, expected)


@pytest.mark.parametrize("spec", ["relative", "relative+random", "relative+factorized_random"])
@pytest.mark.parametrize(("causal", "window"), [(True, None), (False, None), (True, 5)])
def test_a_long_sequence_is_exact_and_keeps_nothing_of_all_pairs(spec, causal, window, monkeypatch):
    """Blocks of rows, made again for backward, without the compiled kernel."""
    for name, value in {"LONG": 8, "FEWEST_ROWS": 4, "NUM_BLOCKS": 5}.items():
        monkeypatch.setattr(fast.table, name, value)
    length, kept = 23, []
    layer, x = attention(spec, length=length, causal=causal), tokens(2, length, D)
    layer.window = window
    found = results(layer, x, "fast")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        layer(x)
    if spec == "relative":
        assert max(tensor.numel() for tensor in kept) < H * length * length
    for name, right in results(layer, x, "plain").items():
        torch.testing.assert_close(found[name], right, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("length", [65, 129])
def test_a_last_block_of_one_row_does_not_write_into_the_offsets(length):
    """Of one row and one head, what a window leaves of the distances is a view of them."""
    layer, x = attention("relative@1|dot@2", length=length), tokens(2, length, D)
    layer.window = 5
    found = results(layer, x, "fast")
    for name, right in results(layer, x, "plain").items():
        torch.testing.assert_close(found[name], right, msg=lambda m, n=name: f"{n}: {m}")


def steps(layer, x):
    """The functions of this package, as (file, name), that the second call of a layer runs."""
    root, found = str(Path(synthesizer_attention.__file__).parent) + os.sep, set()

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root) and code.co_name[0] != "<":
            found.add((code.co_filename, code.co_qualname))

    layer(x)
    sys.setprofile(note)
    try:
        layer(x)
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("built", [False, True])
def test_a_forward_is_few_steps(built, monkeypatch):
    if not built:
        monkeypatch.setattr(type(hook.kernels()), "is_built", lambda self: False)
    layer = SyntheticAttention(64, 4, 128, "random+dot", causal=True)
    found = steps(layer, torch.randn(2, 128, 64))
    assert len(found) <= 30, sorted(found)
    assert len({file for file, _ in found}) <= 9
