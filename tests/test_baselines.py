"""Lightweight and dynamic convolution and Linformer, each against its definition in loops."""

import pytest
import torch
from linformer import LinformerSelfAttention
from torch import Tensor

from synthesizer_attention import Size, SyntheticAttention, UserError, ValueCache, build_mixer
from synthesizer_attention.attention.baselines import (
    Convolution,
    Linformer,
    spec_of_mixer,
)
from variants import SIZE, redrawn, tokens

KERNELS = (1, 2, 5, 6, 20)
CONVOLUTIONS = [
    f"{name}:kernel={width}" for name in ("lightconv", "dynamicconv") for width in (3, 7)
]
LINFORMERS = [
    f"linformer:k=4:share_heads={heads}:share_kv={kv}" for heads in (0, 1) for kv in (0, 1)
]
every_baseline = pytest.mark.parametrize("spec", [*CONVOLUTIONS, *LINFORMERS])
every_convolution = pytest.mark.parametrize("spec", CONVOLUTIONS)


def build(spec: str, causal: bool = False, max_len: int = 7) -> torch.nn.Module:
    size = Size(SIZE.d_model, SIZE.num_heads, max_len)
    return redrawn(build_mixer(spec, size, causal=causal)).eval()


def loop_convolution(mixer: Convolution, x: Tensor) -> Tensor:
    """The definition, token by token, head by head, tap by tap; x (T, D) is all real."""
    first, second = (x @ mixer.value.weight.T).chunk(2, dim=-1)
    gated = first * torch.sigmoid(second)
    width, heads = mixer.synthesis.kernel, mixer.size.num_heads
    before = width - 1 if mixer.causal else (width - 1) // 2
    rows = []
    for i in range(len(x)):
        if mixer.name == "lightconv":
            logits = mixer.synthesis.table
        else:
            logits = (mixer.synthesis.write.weight @ gated[i]).reshape(heads, width)
        row = []
        for h in range(heads):
            weights = torch.exp(logits[h]) / torch.exp(logits[h]).sum()
            channels = slice(h * mixer.size.d_head, (h + 1) * mixer.size.d_head)
            total = torch.zeros(mixer.size.d_head, dtype=x.dtype)
            for j in range(width):
                if 0 <= i - before + j < len(x):
                    total = total + weights[j] * gated[i - before + j, channels]
            row.append(total)
        rows.append(torch.cat(row))
    return torch.stack(rows) @ mixer.output.weight.T


def loop_linformer(mixer: Linformer, x: Tensor) -> Tensor:
    """The definition, head by head; x (T, D) holds real tokens alone, the first at position 0."""
    outputs = []
    for h in range(mixer.size.num_heads):
        channels = slice(h * mixer.size.d_head, (h + 1) * mixer.size.d_head)
        q, k, v = (
            (x @ linear.weight.T)[:, channels] for linear in (mixer.query, mixer.key, mixer.value)
        )
        group = 0 if mixer.share_heads else h
        e = mixer.project_key[group, : len(x)]
        f = e if mixer.share_kv else mixer.project_value[group, : len(x)]
        logits = q @ (e.T @ k).T / mixer.size.d_head**0.5
        outputs.append(logits.softmax(-1) @ (f.T @ v))
    return torch.cat(outputs, dim=-1) @ mixer.output.weight.T


def loop(mixer: torch.nn.Module, x: Tensor) -> Tensor:
    defined = loop_linformer if isinstance(mixer, Linformer) else loop_convolution
    return torch.stack([defined(mixer, example) for example in x])


def assert_same_with_gradients(mixer: torch.nn.Module, x: Tensor) -> None:
    x = x.requires_grad_()
    leaves = [x, *mixer.parameters()]
    fast, plain = mixer(x), loop(mixer, x)
    torch.testing.assert_close(fast, plain)
    probe = tokens(*fast.shape, seed=5)
    torch.testing.assert_close(
        torch.autograd.grad((fast * probe).sum(), leaves),
        torch.autograd.grad((plain * probe).sum(), leaves),
    )


@pytest.mark.parametrize("length", [1, 19, 40])
@pytest.mark.parametrize("width", KERNELS)
@pytest.mark.parametrize("name", ["lightconv", "dynamicconv"])
def test_a_convolution_is_its_definition_shifted_banded_or_in_blocks(name, width, length):
    causal = (width + length) % 2 == 1
    mixer = build(f"{name}:kernel={width}", causal)
    assert_same_with_gradients(mixer, tokens(2, length, 12))


@pytest.mark.parametrize("spec", LINFORMERS)
def test_linformer_is_its_definition(spec):
    assert_same_with_gradients(build(spec), tokens(2, 5, 12))


@pytest.mark.parametrize("share_kv", [False, True])
def test_linformer_agrees_with_the_public_package(share_kv):
    """Its share_kv also shares the maps to keys and values; ours shares the projections alone."""
    theirs = redrawn(LinformerSelfAttention(12, 7, k=4, heads=3, share_kv=share_kv))
    theirs.to_out.bias.data.zero_()
    ours = build(f"linformer:k=4:share_kv={int(share_kv)}")
    pairs = [(ours.query, theirs.to_q), (ours.key, theirs.to_k), (ours.output, theirs.to_out)]
    pairs.append((ours.value, theirs.to_k if share_kv else theirs.to_v))
    for mine, other in pairs:
        mine.weight.data.copy_(other.weight)
    ours.project_key.data[0] = theirs.proj_k
    if not share_kv:
        ours.project_value.data[0] = theirs.proj_v
    for length in (7, 4):
        x = tokens(2, length, 12)
        torch.testing.assert_close(ours(x), theirs(x))


@every_baseline
def test_padding_changes_no_real_token(spec):
    """Right, left or in the middle: the outputs are those of the real tokens alone."""
    mixer = build(spec)
    x = tokens(4, 7, 12)
    mask = torch.tensor(
        [[1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1], [1, 0, 1, 1, 0, 0, 1], [1] * 7]
    )
    padded = mixer(x, attention_mask=mask)
    for row, real in enumerate(mask.bool()):
        alone = mixer(x[row : row + 1, real])
        torch.testing.assert_close(padded[row, real], alone[0])


@every_baseline
def test_padding_is_never_read_and_an_empty_example_gives_zeros(spec):
    mixer, mask = build(spec), torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0]])
    x = tokens(2, 5, 12)
    changed = x.masked_fill(~mask.bool()[..., None], 99.0)
    before, after = (mixer(given, attention_mask=mask) for given in (x, changed))
    torch.testing.assert_close(after[mask.bool()], before[mask.bool()])
    assert not after[1].any()
    assert mixer(x[:0]).shape == (0, 5, 12)


@pytest.mark.parametrize("chunks", [(1,) * 9, (4, 1, 3, 1), (2, 7)])
@pytest.mark.parametrize("width", [1, 3, 7])
@pytest.mark.parametrize("name", ["lightconv", "dynamicconv"])
def test_a_cached_window_gives_what_the_whole_sequence_gives(name, width, chunks):
    mixer, x, cache = build(f"{name}:kernel={width}", causal=True), tokens(3, 9, 12), ValueCache()
    mask = torch.tensor([[1] * 9, [0, 0, 1, 1, 1, 1, 1, 1, 1], [1, 0, 1, 0, 0, 1, 1, 1, 0]])
    whole, pieces, start = mixer(x, attention_mask=mask), [], 0
    for chunk in chunks:
        end = start + chunk
        pieces.append(mixer(x[:, start:end], attention_mask=mask[:, :end], cache=cache))
        start = end
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole)
    assert cache.get_seq_length() == 9
    assert cache.values.shape == (3, width - 1, 12)


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ("lightconv:kernel=5", 3 * 12**2 + 3 * 5),
        ("dynamicconv:kernel=5", 3 * 12**2 + 12 * 3 * 5),
        ("linformer:k=4", 4 * 12**2 + 2 * 7 * 4),
        ("linformer:k=4:share_kv=1", 4 * 12**2 + 7 * 4),
        ("linformer:k=4:share_heads=0", 4 * 12**2 + 3 * 2 * 7 * 4),
    ],
)
def test_parameters_are_those_of_the_formula(spec, count):
    """Two of the D^2 are what values and output cost in every mixer: the tables leave them out."""
    assert sum(p.numel() for p in build_mixer(spec, SIZE).parameters()) == count


@every_baseline
def test_a_state_dict_and_a_spec_rebuild_the_mixer(spec):
    mixer, x = build(spec), tokens(2, 5, 12)
    written = spec_of_mixer(mixer)
    again = build_mixer(written, SIZE).double()
    again.load_state_dict(mixer.state_dict())
    assert spec_of_mixer(again) == written
    assert torch.equal(again(x), mixer(x))


def test_dropconnect_drops_at_every_token_and_keeps_the_mean():
    """A lightweight kernel is one for the batch, and so is its draw; a dynamic one is not."""
    x = tokens(1, 40, 12).expand(2, -1, -1)
    for name, shared in (("lightconv", True), ("dynamicconv", False)):
        mixer = redrawn(build_mixer(f"{name}:kernel=3", SIZE, dropout=0.5))
        torch.manual_seed(0)
        first, second = mixer(x)
        assert torch.equal(first, second) is shared
        draws = torch.stack([mixer(x)[0] for _ in range(400)])
        error = (draws.mean(0) - mixer.eval()(x)[0]).abs() / draws.std(0)
        assert error.mean() < 0.06  # a mean of 400 draws is off by 1/20 of their spread or less


def test_dropped_taps_are_zero_and_the_others_doubled():
    mixer = redrawn(build_mixer("lightconv:kernel=3", SIZE, dropout=0.5))
    whole = mixer.synthesis(None).softmax(-1)
    dropped = mixer._drop(whole, 50)
    assert dropped.shape == (1, 50, 3, 3)
    kept = dropped != 0
    torch.testing.assert_close(dropped, 2 * whole * kept)
    assert 0.4 < kept.double().mean() < 0.6


@pytest.mark.parametrize("spec", LINFORMERS)
def test_resizing_linformer_keeps_what_both_lengths_share(spec):
    mixer, x = build(spec), tokens(1, 5, 12)
    before = mixer(x)
    mixer.resize(11)
    assert mixer.project_key.shape[1] == 11
    torch.testing.assert_close(mixer(x), before)
    mixer.resize(5)
    torch.testing.assert_close(mixer(x), before)
    with pytest.raises(UserError, match="6 tokens met a model built for max_len=5"):
        mixer(tokens(1, 6, 12))


def test_a_convolution_has_no_longest_sequence():
    mixer = build("lightconv:kernel=3", max_len=2)
    before = mixer(tokens(1, 9, 12))
    mixer.resize(1)
    assert torch.equal(mixer(tokens(1, 9, 12)), before)


def test_linformer_reads_its_projections_at_positions():
    mixer, x = build("linformer:k=4"), tokens(2, 3, 12)
    shifted = torch.tensor([2, 4, 5])
    moved = mixer(x, position_ids=shifted)
    mixer.project_key.data[:, :3] = mixer.project_key.data[:, shifted]
    mixer.project_value.data[:, :3] = mixer.project_value.data[:, shifted]
    torch.testing.assert_close(moved, mixer(x))


@every_baseline
def test_a_mixer_can_be_sketched_without_memory(spec):
    with torch.device("meta"):
        mixer = build_mixer(spec, SIZE)
        mask = torch.ones(2, 5, dtype=torch.bool)
        assert mixer(torch.empty(2, 5, 12), attention_mask=mask).shape == (2, 5, 12)


@every_baseline
def test_a_mixer_runs_in_half_precision(spec):
    mixer = build_mixer(spec, SIZE).bfloat16()
    x = tokens(2, 5, 12).bfloat16()
    assert mixer(x).dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert build_mixer(spec, SIZE)(x.float()).isfinite().all()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: build_mixer("lightconv+dot", SIZE),
            "synthesis 'lightconv+dot' mixes with 'lightconv', a token mixer that makes no logits "
            "to add; write it alone, or per layer with commas",
        ),
        (
            lambda: SyntheticAttention(12, 3, 7, "dynamicconv"),
            "synthesis 'dynamicconv' is a token mixer and makes no logits; build it with "
            "build_mixer, or in a model",
        ),
        (
            lambda: build_mixer("linformer:k=4", SIZE, causal=True),
            "linformer cannot be causal: its outputs read later tokens; use it in an encoder, and "
            "another spec for a decoder (decoder_synthesis)",
        ),
        (
            lambda: build("lightconv").attend(tokens(1, 3, 12)),
            "'lightconv' has no attention weights between tokens; leave output_attentions out, or "
            "choose a synthesizing function",
        ),
        (
            lambda: build("linformer")(tokens(1, 3, 12), bias=torch.zeros(1, 3, 3, 3)),
            "'linformer' has no logits that a bias could be added to; choose other positions than "
            '"relative"',
        ),
        (
            lambda: build("lightconv")(tokens(1, 3, 12), cache=ValueCache()),
            "'lightconv' reads later tokens here, so it cannot use a cache; leave the cache out",
        ),
        (
            lambda: build_mixer("dynamicconv:kernel=0", SIZE),
            "dynamicconv:kernel=0; kernel must be at least 1",
        ),
        (
            lambda: build_mixer("linformer:share_kv=yes", SIZE),
            "option share_kv=yes in synthesis 'linformer:share_kv=yes' is not 0 or 1",
        ),
        (
            lambda: build_mixer("lightconv:width=3", SIZE),
            "unknown option 'width' in synthesis 'lightconv:width=3'; its options are kernel",
        ),
        (
            lambda: build("lightconv")(tokens(1, 3, 12), attention_mask=torch.ones(1, 4)),
            "attention_mask has shape (1, 4); expected (1, 3), True where a token is real, cached "
            "tokens included",
        ),
    ],
)
def test_mistakes_are_told(make, text):
    with pytest.raises(UserError) as caught:
        make()
    assert str(caught.value) == text
