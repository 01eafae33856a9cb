"""A token through all layers by one call of the kernel: what the stack gives, or no call."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from synthesizer_attention.attention import masks
from synthesizer_attention.attention.synthesis import Dense
from synthesizer_attention.kernels import decoding
from synthesizer_attention.models.config import SynthesizerConfig
from synthesizer_attention.models.heads import MODELS
from test_kernel import built, library, needs_compiler

__all__ = ["built", "library"]  # fixtures

pytestmark = needs_compiler

LENGTH, PROMPT, VOCABULARY = 7, 3, 19
KNOWN = (
    "dot",
    "random",
    "fixed_random",
    "factorized_random",
    "dense",
    "factorized_dense",
    "relative",
    "random+dot",
    "dense+dot",
    "dot+dot",
    "random+dense",
    "relative+factorized_dense+factorized_random+dot",
)
LATE = {"norm": "rms", "norm_position": "post", "activation": "gelu", "positions": "learned"}
MANY = 19  # sequences: two registers of them, one not full
SETTINGS = [
    {},
    LATE,
    {"positions": "none"},
    {"positions": "relative"},
    {"positions": "alibi", "window": 4},
    {"positions": "rotary", "window": "chunk:size=3"},
    {"positions": "rotary+relative", "norm_position": "post", "window": 2},
]


@masks.register_mask("chunk")
def chunk(here, last, *, size):
    start = (here - 1) // size * size
    return start, start + size


@pytest.fixture
def tokens_by_kernel(built, monkeypatch):
    """How many tokens the kernel took, and a way to say no to it."""
    found = {"count": 0, "refused": False}

    decode = decoding.decode_token

    def told(*given):
        states = None if found["refused"] else decode(*given)
        found["count"] += states is not None
        return states

    monkeypatch.setattr(decoding, "decode_token", told)
    return found


def model_of(spec, d_model=32, num_heads=2, max_len=20, kind="decoder", **settings):
    config = SynthesizerConfig(
        kind=kind, vocab_size=VOCABULARY, d_model=d_model, num_heads=num_heads, num_layers=2,
        d_ff=40, max_len=max_len, synthesis=spec, pad_token_id=0, eos_token_id=1, **settings,
    )  # fmt: skip
    model = MODELS[kind](config).eval()
    draw = torch.Generator().manual_seed(7)
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = torch.randn(tensor.shape, generator=draw) * 0.3
    return model


def ids_of(batch, length=LENGTH):
    return torch.randint(2, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def step_by_step(model, ids, mask=None, source=None, source_mask=None, **options):
    """The logits of every token behind the prompt, one by one, and the cache."""
    cache, logits, prefix = None, [], ""
    if source is not None:
        options |= {"input_ids": source, "attention_mask": source_mask}
        prefix = "decoder_"
    for start, stop in [(0, PROMPT), *[(n, n + 1) for n in range(PROMPT, ids.shape[1])]]:
        given = {f"{prefix}input_ids": ids[:, start:stop]}
        given[f"{prefix}attention_mask"] = None if mask is None else mask[:, :stop]
        output = model(past_key_values=cache, use_cache=True, **given, **options)
        cache = output.past_key_values
        logits.append(output.logits)
    return torch.cat(logits[1:], 1), getattr(cache, "self_attention_cache", cache)


def assert_same(model, tokens_by_kernel, ids, mask=None, *, by_kernel=True, **options):
    """The kernel takes every token behind the prompt, or none, and gives what the stack gives."""
    tokens_by_kernel.update(count=0, refused=False)
    found, cache = step_by_step(model, ids, mask, **options)
    assert tokens_by_kernel["count"] == (ids.shape[1] - PROMPT if by_kernel else 0)
    tokens_by_kernel["refused"] = True
    expected, kept = step_by_step(model, ids, mask, **options)
    tokens_by_kernel["refused"] = False
    close = {"rtol": 1e-5, "atol": 1e-5 * float(expected.abs().max())}
    torch.testing.assert_close(found, expected, **close)
    for ours, theirs in zip(cache.layers, kept.layers, strict=True):
        assert ours.num_tokens == theirs.num_tokens
        torch.testing.assert_close(ours.values, theirs.values, rtol=1e-4, atol=1e-4)
        assert (ours.keys is None) == (theirs.keys is None)
        if ours.keys is not None:
            torch.testing.assert_close(ours.keys, theirs.keys, rtol=1e-4, atol=1e-4)
    return found


def left_padded(batch, length=LENGTH):
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, :2] = 0
    mask[-1, :1] = 0
    return mask


@pytest.mark.parametrize("spec", KNOWN)
@pytest.mark.parametrize("settings", SETTINGS)
def test_the_kernel_gives_what_the_stack_gives(spec, settings, tokens_by_kernel):
    width = (16, 12)[(KNOWN.index(spec) + SETTINGS.index(settings)) % 2]  # whole vectors, and not
    model = model_of(spec, d_model=2 * width, **settings)
    for batch in (1, 5, MANY):
        assert_same(model, tokens_by_kernel, ids_of(batch))
        assert_same(model, tokens_by_kernel, ids_of(batch), left_padded(batch))


@pytest.mark.parametrize(
    ("spec", "width", "settings"),
    [("dot", 16, {}), ("dense+dot", 12, LATE), ("random", 16, {"positions": "alibi", "window": 4})],
)
def test_an_encoder_decoder_reads_its_memory_in_the_same_call(
    spec, width, settings, tokens_by_kernel
):
    model = model_of(spec, d_model=2 * width, kind="encoder_decoder", **settings)
    for batch in (1, MANY):
        source, hidden = ids_of(batch, 18), torch.ones(batch, 18, dtype=torch.long)
        hidden[0, 11:] = 0
        hidden[-1, :3], hidden[-1, 7] = 0, 0  # on the left and a hole, too
        for given in (None, hidden):
            assert_same(model, tokens_by_kernel, ids_of(batch), source=source, source_mask=given)
    hidden[2] = 0  # a source of padding alone is no source
    assert_same(
        *(model, tokens_by_kernel, ids_of(batch), left_padded(batch)),
        source=source, source_mask=hidden,
    )  # fmt: skip


def test_a_wide_product_is_read_in_slices(tokens_by_kernel):
    """More inputs than a slice of a product holds, and a vocabulary that no tile divides."""
    model = model_of("dense+dot", d_model=1060)
    for tensor in model.parameters():
        tensor.data *= 0.2
    for batch in (4, 6, MANY):
        assert_same(model, tokens_by_kernel, ids_of(batch, 5))


@pytest.mark.parametrize("threads", [2, 3])  # heads each, more than heads
def test_threads_share_a_token(threads, tokens_by_kernel, monkeypatch):
    monkeypatch.setattr(decoding, "LARGE", 0)
    torch.set_num_threads(threads)
    for spec, settings in (("random+dot", {}), ("factorized_dense", LATE), ("dot", SETTINGS[-1])):
        assert_same(model_of(spec, **settings), tokens_by_kernel, ids_of(3))
        assert_same(model_of(spec, **settings), tokens_by_kernel, ids_of(MANY), left_padded(MANY))
    model = model_of("dense", kind="encoder_decoder")
    assert_same(model, tokens_by_kernel, ids_of(MANY), source=ids_of(MANY, 9))


def test_a_mask_of_any_kind_is_read(tokens_by_kernel):
    model, mask = model_of("random+dot"), torch.ones(2, LENGTH, dtype=torch.long)
    for given in (mask, mask.bool(), mask.T.contiguous().T, mask.float()):
        assert_same(model, tokens_by_kernel, ids_of(2), given)


@pytest.mark.parametrize("spec", ["relative", "relative+dot"])
def test_distances_past_the_longest_read_the_end(spec, tokens_by_kernel):
    model, ids = model_of(spec, max_len=5), ids_of(2)
    assert_same(model, tokens_by_kernel, ids)


def test_a_frozen_table_is_read(tokens_by_kernel):
    model, ids = model_of("random"), ids_of(3)
    mask = torch.ones(3, LENGTH, dtype=torch.long)
    mask[0, :2] = 0
    expected = [assert_same(model, tokens_by_kernel, ids, given) for given in (None, mask)]
    for layer in model.model.decoder.layers:
        layer.attention.freeze()
    for given, right in zip((None, mask), expected, strict=True):
        found = assert_same(model, tokens_by_kernel, ids, given)
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {"universal": True},
        {"synthesis": "random@1|dot@1"},
        {"synthesis": "lightconv"},
        {"synthesis": "none,dot"},
        {"synthesis": "random+random+random+random+dot"},
    ],
)
def test_what_the_kernel_does_not_know_goes_through_the_stack(settings, tokens_by_kernel):
    model = model_of(**{"spec": settings.pop("synthesis", "random+dot"), **settings})
    assert_same(model, tokens_by_kernel, ids_of(2), by_kernel=False)


def test_holes_go_through_the_stack(tokens_by_kernel):
    model, mask = model_of("random+dot"), torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, 1] = 0
    assert_same(model, tokens_by_kernel, ids_of(2), mask, by_kernel=False)


def places(model):
    """Every module that the stack calls while it decodes."""
    stack = model.model.decoder
    return [stack, *[m for m in stack.modules() if m is not stack and type(m) is not nn.ModuleList]]


def test_a_hook_anywhere_is_called(tokens_by_kernel):
    model, ids = model_of("random+dot"), ids_of(1, 4)
    for module in places(model):
        for register in (module.register_forward_hook, module.register_forward_pre_hook):
            handle = register(lambda *given: None)
            assert_same(model, tokens_by_kernel, ids, by_kernel=False)
            handle.remove()
    assert_same(model, tokens_by_kernel, ids)
    handle = nn.modules.module.register_module_forward_hook(lambda *given: None)
    assert_same(model, tokens_by_kernel, ids, by_kernel=False)
    handle.remove()


def test_a_part_that_trains_or_was_replaced_is_called(tokens_by_kernel):
    model, ids = model_of("random+dot"), ids_of(1, 4)
    for module in places(model):
        module.training = True
        assert_same(model, tokens_by_kernel, ids, by_kernel=False)
        module.training = False
    layer = model.model.decoder.layers[1]
    layer.feed_forward.activation = F.silu
    assert_same(model, tokens_by_kernel, ids, by_kernel=False)
    layer.feed_forward.activation = F.gelu
    assert_same(model, tokens_by_kernel, ids)
    value = layer.attention.value
    layer.attention.value = nn.Sequential(value, nn.Tanh()).eval()
    assert_same(model, tokens_by_kernel, ids, by_kernel=False)
    layer.attention.value = nn.Linear(32, 32).eval()
    assert_same(model, tokens_by_kernel, ids)
    layer.attention.forward = lambda x, **given: x
    assert_same(model, tokens_by_kernel, ids, by_kernel=False)


def test_other_types_gradients_and_what_was_asked_go_through_the_stack(tokens_by_kernel):
    model, ids = model_of("random+dot"), ids_of(1, 5)
    for asked in ({"output_attentions": True}, {"output_hidden_states": True}):
        assert_same(model, tokens_by_kernel, ids, by_kernel=False, **asked)
    with torch.autocast("cpu", torch.bfloat16):
        step_by_step(model, ids)
    with torch.no_grad():
        cache = model(ids[:, :4], use_cache=True).past_key_values
    assert model(ids[:, 4:], past_key_values=cache).logits.requires_grad
    step_by_step(copy.deepcopy(model).double(), ids)
    model.model.decoder.layers[0].attention.path = "plain"
    step_by_step(model, ids)
    assert tokens_by_kernel["count"] == 0


def changes(model):
    """Ways to change weights, each of which must be seen by the next token."""
    table = model.model.decoder.layers[0].attention.synthesis.parts[0].table
    norm = model.model.decoder.norm
    with torch.no_grad():
        table.mul_(-2.0)
        yield "in place"
        table.data = -table.data
        yield "by data"
        model.load_state_dict({name: 0.9 * t for name, t in model.state_dict().items()})
        yield "a checkpoint"
        norm.weight = nn.Parameter(norm.weight + 1.0)
        yield "a new parameter"
        model.bfloat16().float()
        yield "another type and back"
    model.requires_grad_(True)
    with torch.enable_grad():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(ids_of(1), labels=ids_of(1)).loss.backward()
    optimizer.step()
    yield "a step"
    model.resize(25)
    yield "another length"


def test_changed_weights_are_read_by_the_next_token(tokens_by_kernel):
    model, ids = model_of("random+dot"), ids_of(1)
    before = assert_same(model, tokens_by_kernel, ids)
    for how in changes(model):
        after = assert_same(model, tokens_by_kernel, ids)
        assert how == "another length" or not torch.allclose(before, after, atol=1e-3), how
        before = after


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ("random+dot", {}),
        ("dense", {"positions": "relative", "window": 3}),
        ("dot", {"positions": "rotary"}),
        ("dense+dot", {"kind": "encoder_decoder", "positions": "alibi"}),
    ],
)
@pytest.mark.parametrize("left", [0, 2])
@pytest.mark.parametrize(
    "options", [{}, {"do_sample": True}, {"num_beams": 3, "num_return_sequences": 2}]
)
def test_generate_writes_the_same(spec, settings, left, options, tokens_by_kernel):
    model, ids = model_of(spec, **settings), ids_of(6, 5)
    mask = torch.ones_like(ids)
    mask[0, :left], ids[0, :left] = 0, 0
    written = []
    for refused in (False, True):
        tokens_by_kernel.update(count=0, refused=refused)
        torch.manual_seed(3)
        given = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False, **options}
        written.append(model.generate(ids, attention_mask=mask, **given))
        assert (tokens_by_kernel["count"] > 0) == (not refused)
    assert torch.equal(*written)


def test_a_copy_of_a_cache_goes_its_own_way(tokens_by_kernel):
    """Two caches may share tensors: neither writes into what the other has kept."""
    model, ids, other = model_of("random+dot"), ids_of(1, 8), ids_of(2, 8)[1:]
    with torch.no_grad():
        cache = model(ids[:, :4], use_cache=True).past_key_values
        model(ids[:, 4:5], past_key_values=cache)  # it has room now
        for duplicate in (copy.copy, copy.deepcopy):
            twin = copy.copy(cache)
            twin.layers = [duplicate(layer) for layer in cache.layers]
            both = []
            for kept, more in ((cache, ids), (twin, other)):
                both.append([model(more[:, n : n + 1], past_key_values=kept) for n in (5, 6)])
            for own, tail in zip(both, (ids, other), strict=True):
                joined = torch.cat([ids[:, :5], tail[:, 5:7]], 1)
                right = model(joined).logits[:, 5:]
                found = torch.cat([output.logits for output in own], 1)
                torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)
            cache.crop(5)
    assert tokens_by_kernel["count"] == 9


def test_given_positions_must_be_the_counted_ones(tokens_by_kernel):
    model, ids = model_of("random+dot"), ids_of(2, 5)
    with torch.no_grad():
        cache = model(ids[:, :4], use_cache=True).past_key_values
        counted = torch.full((2, 1), 4)
        model(ids[:, 4:], past_key_values=cache, position_ids=counted)
        assert tokens_by_kernel["count"] == 1
        with pytest.raises(Exception, match="do not continue the 5 cached ones"):
            model(ids[:, 4:], past_key_values=cache, position_ids=counted)
    assert tokens_by_kernel["count"] == 1


def test_a_sequence_that_is_too_long_is_refused_as_ever(tokens_by_kernel):
    model, ids = model_of("random+dot", max_len=5), ids_of(1, 6)
    with pytest.raises(Exception, match="a sequence of 6 tokens met a model built for max_len=5"):
        step_by_step(model, ids)


def test_a_subclass_decodes_by_its_parents_terms_only_where_it_has_no_equation_of_its_own():
    class Renamed(Dense):
        pass

    class Doubled(Dense):
        def terms(self, x, keys, places, scale=None):
            return super().terms(2 * x, keys, places, scale)

    assert Renamed.decoded == Dense.decoded
    assert not Doubled.decoded
