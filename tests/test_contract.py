"""The contract: every variant, path, mask and kind of positions gives what one naive loop gives."""

import math
from contextlib import contextmanager

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synthesizer_attention.attention import SyntheticAttention, ValueCache, fast, masks
from synthesizer_attention.spec import RotaryOptions
from variants import EVERY, GROUPS, TABLES, redrawn, tokens

B, H, D, N = 2, 3, 12, 8
K = D // H
SPECS = [*EVERY, *GROUPS, "relative+random+dot", "factorized_random+dense+factorized_dense"]
SPECS += ["factorized_dense+factorized_dense", "dot+dot+dense", "random+fixed_random"]
SPECS += ["dense:input=head", "dense:share=1", "factorized_dense:input=head:share=1"]
SPECS += ["dense:share=1+factorized_dense:share=1", "dot@1|dense:input=head:share=1@2"]
SPECS += ["relative:sinks=2", "relative:sinks=2+dot", "random@1|relative:sinks=2@2"]
ROTARY = RotaryOptions(base=30.0, share=0.5)
SMALL = [
    (fast.short, "FEWEST_ROWS", 2),
    (fast.blocks, "CACHED", 60),
    (fast.table, "FEWEST_ROWS", 2),
]
SMALL += [(masks, "FEWEST_ROWS", 2), (fast.dispatch, "SHORT", 1)]


CHUNK = "chunk:size=2"


@masks.register_mask("chunk")
def chunk(here, last, *, size: int):
    """A kind of mask from outside masks.py: a query sees the tokens of its own chunk."""
    start = (here - 1) // size * size
    return start, start + size


def turned(vector, position, rotary):
    """R_p x, pair by pair."""
    if rotary is None:
        return vector
    width = 2 * int(len(vector) * rotary.share / 2)
    half, out = width // 2, list(vector)
    for n in range(half):
        angle = position * rotary.base ** (-2 * n / width)
        left, right = vector[n], vector[n + half]
        out[n] = left * math.cos(angle) - right * math.sin(angle)
        out[n + half] = left * math.sin(angle) + right * math.cos(angle)
    return torch.stack(out)


def naive_logit(part, h, query, key, i, j, is_last=False, rotary=None, head=None):
    """One logit of head h: a query at position i, a key at position j, and the paper's equation.

    is_last  whether this is the last real key
    head     which of the layer's heads h of a group is
    """
    name, head = type(part).__name__, h if head is None else head
    if name == "DotProduct":
        left, right = turned(query @ part.wq[h], i, rotary), turned(key @ part.wk[h], j, rotary)
        return left @ right / math.sqrt(K)
    if name in ("Random", "FixedRandom"):
        return part.table[h, i, j]
    if name == "FactorizedRandom":
        return part.rows[h, i] @ part.columns[h, j]
    if name == "Relative":
        reach = part.offsets.shape[1] // 2
        if is_last and part.last is not None:
            return part.last[h, 0]
        return (
            part.first[h, 0] if j == 0 else part.offsets[h, max(-reach, min(reach, j - i)) + reach]
        )
    if name == "Grouped":
        for group, count in zip(part.groups, part.heads, strict=True):
            if h < count:
                return naive_logit(group, h, query, key, i, j, is_last, rotary, head)
            h -= count
    if name == "Mixture":
        alphas = part.mix[h].exp() / part.mix[h].exp().sum()
        return sum(
            alpha * naive_logit(each, h, query, key, i, j, is_last, rotary, head)
            for alpha, each in zip(alphas, part.parts, strict=True)
        )
    read = query[head * K : (head + 1) * K] if part.input == "head" else query
    hidden = torch.relu(read @ part.w1[h] + part.b1[h])
    h = 0 if part.share else h
    if name == "Dense":
        return hidden @ part.w2[h, :, j] + part.b2[h, j]
    assert name == "FactorizedDense"
    left = hidden @ part.wa[h, :, j % part.a] + part.ba[h, j % part.a]
    return left * (hidden @ part.wb[h, :, j // part.a] + part.bb[h, j // part.a])


def naive(layer, x, mask=None, positions=None, bias=None, rotary=None):
    """The layer, pair by pair: which keys a query sees, their logits, softmax, values, output."""
    batch, length, _ = x.shape
    real = torch.ones(batch, length, dtype=torch.bool) if mask is None else mask
    x = x * real[..., None]
    values, rows = layer.value(x).view(batch, length, H, K), []
    for b in range(batch):
        if positions is not None:
            at = positions.expand(batch, length)[b].tolist()
        else:  # the real tokens are counted; a hidden one keeps its slot
            at = [int(real[b, :i].sum()) if real[b, i] else i for i in range(length)]
        last = max((j for j in range(length) if real[b, j]), default=None)
        for i in range(length):
            seen = []
            for j in range(length):
                apart = int(real[b, min(i, j) + 1 : max(i, j) + 1].sum())  # in real tokens
                near = layer.window is None or layer.window == CHUNK or apart < layer.window
                if layer.window == CHUNK:
                    near = len({(int(real[b, : at + 1].sum()) - 1) // 2 for at in (i, j)}) == 1
                if real[b, j] and near and (j <= i or not layer.causal):
                    seen.append(j)
            heads = []
            for h in range(H):
                each = [
                    naive_logit(
                        layer.synthesis, h, x[b, i], x[b, j], at[i], at[j], j == last, rotary
                    )
                    + (0.0 if bias is None else bias.expand(batch, H, length, length)[b, h, i, j])
                    for j in seen
                ]
                weights = torch.stack(each).softmax(0) if seen else x.new_zeros(0)
                heads.append(weights @ values[b, seen, h])
            rows.append(torch.cat(heads))
    return layer.output(torch.stack(rows).view(batch, length, D))


def gradients(layer, y, x, bias):
    """Of the input, the bias and every parameter."""
    named = {"input": x, "bias": bias, **dict(layer.named_parameters())}
    named = {name: tensor for name, tensor in named.items() if tensor is not None}
    spread = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    found = torch.autograd.grad((y * spread).sum(), list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(tensor) if grad is None else grad
        for (name, tensor), grad in zip(named.items(), found, strict=True)
    }


@contextmanager
def small_blocks():
    """Rows, examples and heads are cut into blocks even where all is short."""
    with pytest.MonkeyPatch.context() as patch:
        for file, name, number in SMALL:
            patch.setattr(file, name, number)
        yield


@st.composite
def calls(draw, longest=5):
    """A layer, its input, and what it is called with."""
    spec = draw(st.sampled_from(SPECS))
    length = draw(st.integers(1, longest))
    options = {
        "causal": "sinks" not in spec and draw(st.booleans()),
        "window": draw(st.sampled_from([None, None, None, 1, 3, CHUNK])),
    }
    rotary = ROTARY if "dot" in spec and draw(st.booleans()) else None
    layer = redrawn(SyntheticAttention(D, H, N, spec, rotary=rotary, **options))
    inputs = {}
    if draw(st.booleans()):
        rows = st.lists(st.booleans(), min_size=length, max_size=length)
        mask = torch.tensor([draw(rows) for _ in range(B)])
        if draw(st.booleans()):  # right padding
            mask = mask.sort(-1, descending=True)[0]
        inputs["mask"] = mask
    kind = draw(st.sampled_from(["counted", "counted", "counted", "shared", "of each"]))
    if kind != "counted":
        at = st.lists(st.integers(0, N - 1), min_size=length, max_size=length)
        shape = [draw(at) for _ in range(B)] if kind == "of each" else draw(at)
        inputs["positions"] = torch.tensor(shape)
    if draw(st.integers(0, 2)) == 0:
        shape = draw(st.sampled_from([(1, H), (1, 1), (B, H)]))
        inputs["bias"] = tokens(*shape, length, length, seed=4).requires_grad_()
    return layer, tokens(B, length, D).requires_grad_(), inputs, rotary


def named(inputs):
    names = {"mask": "attention_mask", "positions": "position_ids", "bias": "bias"}
    return {names[name]: value for name, value in inputs.items()}


@pytest.fixture
def taken(monkeypatch):
    """The paths that calls take."""
    paths, choose = set(), fast.dispatch.choose
    told = lambda *given: (choice := choose(*given), paths.add(choice.path))[0]  # noqa: E731
    monkeypatch.setattr(fast.dispatch, "choose", told)
    return paths


def test_every_path_gives_the_naive_loop_and_its_gradients(taken):
    @settings(max_examples=150, deadline=None)
    @given(call=calls())
    def check(call):
        layer, x, inputs, rotary = call
        expected = naive(layer, x, **inputs, rotary=rotary)
        wanted = gradients(layer, expected, x, inputs.get("bias"))
        for path in ("plain", "auto", "fast"):
            layer.path = path
            shown, weights = layer.attend(x, **named(inputs))
            torch.testing.assert_close(shown, expected, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(weights, layer.weights(x, **named(inputs)))
            sums = weights.sum(-1)
            torch.testing.assert_close(sums, (sums > 0.5).to(sums))  # one, or zero: it sees nothing
            with small_blocks():
                y = layer(x, **named(inputs))
                found = gradients(layer, y, x, inputs.get("bias"))
            for name, right in {"output": expected, **wanted}.items():
                left = y if name == "output" else found[name]
                torch.testing.assert_close(
                    left, right, rtol=1e-9, atol=1e-9, msg=lambda m, n=f"{path} {name}": f"{n}: {m}"
                )

    check()
    assert taken == {"plain", "fused", "table", "groups", "short", "blocks"}


def test_decoding_in_steps_gives_the_naive_loop(taken):
    @settings(max_examples=100, deadline=None)
    @given(call=calls(), data=st.data())
    def check(call, data):
        layer, x, inputs, rotary = call
        assume(not layer.synthesis.has_last)
        layer.causal, cache, found, at = True, ValueCache(), [], 0
        expected, length = naive(layer, x, **inputs, rotary=rotary), x.shape[1]
        layer.path = data.draw(st.sampled_from(["auto", "auto", "auto", "plain", "fast"]))
        with torch.no_grad(), small_blocks():
            while at < length:
                end = data.draw(st.integers(at + 1, length))
                part = {name: given[..., :end] for name, given in inputs.items()}
                if "bias" in part:
                    part["bias"] = part["bias"][..., at:end, :]
                found.append(layer(x[:, at:end], cache=cache, **named(part)))
                at = end
                held = min(at, layer.window) if isinstance(layer.window, int) else at
                assert cache.values.shape[2] == held
                assert (cache.keys is None) == (layer.synthesis.d_keys == 0)
        torch.testing.assert_close(torch.cat(found, 1), expected, rtol=1e-9, atol=1e-9)

    check()
    assert "row" in taken


@pytest.mark.parametrize("spec", [*TABLES, "random@1|relative@2"])
@pytest.mark.parametrize("causal", [False, True])
def test_what_is_frozen_gives_the_naive_loop(spec, causal, taken):
    layer = redrawn(SyntheticAttention(D, H, 5, spec, causal=causal)).eval()
    layer.freeze()
    with torch.no_grad():
        for length in (5, 3, 1):
            x = tokens(B, length, D)
            torch.testing.assert_close(layer(x), naive(layer, x), rtol=1e-9, atol=1e-9)
    assert "frozen" in taken
