"""Second derivatives, torch.func and forward mode give what the plain equations give."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap
from torch.utils.checkpoint import checkpoint

from synthesizer_attention import Size, SynthesizerForCausalLM, SyntheticAttention
from synthesizer_attention.attention import fast
from synthesizer_attention.attention.baselines import build_mixer
from synthesizer_attention.attention.layer import CrossAttention
from test_fast import D, H, attention, mask_of
from test_kernel import built, library, needs_compiler
from test_models import build, ids
from variants import TABLES, tokens

__all__ = ["built", "library"]  # fixtures

# torch's own forward mode scripts its rules
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")

SPECS = [*TABLES, "dense", "factorized_dense", "random+dot", "dense+dot+factorized_dense"]
SPECS += ["relative+dot", "dense@2|random+dot@1"]
every_spec = pytest.mark.parametrize("spec", SPECS)
CASES = [("none", True), ("left", True), ("holes", False)]
LENGTH = 11


def gradients_of_a_penalty(layer, x, path, **given):
    """Of the squared gradients of a loss: for the input and every parameter."""
    layer.path = path
    x = x.detach().requires_grad_()
    wanted, loss = [x, *layer.parameters()], layer(x, **given).pow(3).mean()
    first = torch.autograd.grad(loss, wanted, create_graph=True, materialize_grads=True)
    penalty = sum(found.square().sum() for found in first)
    return torch.autograd.grad(penalty, wanted, materialize_grads=True)


def assert_equal_to_plain(layer, x, bound, **given):
    plain = gradients_of_a_penalty(layer, x, "plain", **given)
    assert any(found.abs().max() > 1e-3 for found in plain)
    for path in ("auto", "fast"):
        for found, expected in zip(
            gradients_of_a_penalty(layer, x, path, **given), plain, strict=True
        ):
            assert (found - expected).norm() <= bound * max(1.0, expected.norm())


@every_spec
@pytest.mark.parametrize(("kind", "causal"), CASES)
def test_a_gradient_is_differentiated_again_as_on_the_plain_path(spec, kind, causal):
    layer, x = attention(spec, length=LENGTH, max_len=13, causal=causal), tokens(3, LENGTH, D)
    assert_equal_to_plain(layer, x, 1e-10, attention_mask=mask_of(kind, 3, LENGTH))


@pytest.mark.parametrize("spec", [*TABLES, "dense"])
def test_so_is_one_of_a_window_and_of_probabilities_made_again(spec, monkeypatch):
    monkeypatch.setattr(fast.table, "LONG", 4)
    layer = attention(spec, length=LENGTH, causal=True)
    layer.window = 3
    assert_equal_to_plain(layer, tokens(2, LENGTH, D), 1e-10)


@needs_compiler
@every_spec
@pytest.mark.parametrize(("kind", "causal"), CASES)
def test_so_is_one_of_the_compiled_kernel(spec, kind, causal, built):
    layer, x = attention(spec, length=LENGTH, causal=causal), tokens(3, LENGTH, D)
    for parameter in layer.parameters():
        parameter.data.mul_(0.3)
    mask = mask_of(kind, 3, LENGTH)
    assert_equal_to_plain(layer.float(), x.float(), 1e-4, attention_mask=mask)
    assert "attend" in built


@every_spec
def test_so_is_one_of_a_checkpoint(spec):
    """It gives saved tensors once: a backward that asks for them again fails."""
    layer, x = attention(spec, length=LENGTH), tokens(2, LENGTH, D)
    expected = gradients_of_a_penalty(layer, x, "plain")
    forward = layer.forward
    layer.forward = lambda x: checkpoint(forward, x, use_reentrant=False)
    for path in ("auto", "fast"):
        found = gradients_of_a_penalty(layer, x, path)
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("spec", ["random", "dense", "random+dot"])
def test_so_is_one_of_the_operators_that_torch_compile_sees(spec):
    torch._dynamo.reset()
    layer, x = attention(spec, length=LENGTH), tokens(2, LENGTH, D)
    expected = gradients_of_a_penalty(layer, x, "plain")
    layer.compile(backend="eager", fullgraph=True)
    for found, plain in zip(gradients_of_a_penalty(layer, x, "fast"), expected, strict=True):
        torch.testing.assert_close(found, plain)


def test_a_graph_with_a_backward_of_its_own_refuses_a_second():
    torch._dynamo.reset()
    layer = attention("random+dot", length=LENGTH)
    layer.compile(backend="aot_eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradients_of_a_penalty(layer, tokens(2, LENGTH, D), "fast")


@pytest.mark.parametrize("spec", ["random", "dense", "random+dot"])
@pytest.mark.parametrize("path", ["auto", "fast"])
def test_a_hessian_times_a_vector_is_a_difference_of_gradients(spec, path):
    layer, x = attention(spec, length=LENGTH, path=path), tokens(2, LENGTH, D)
    v, step = tokens(2, LENGTH, D, seed=2), 1e-5
    loss = lambda x: layer(x).pow(3).mean()  # noqa: E731
    _, found = torch.autograd.functional.hvp(loss, x, v)
    ends = [
        torch.autograd.grad(loss(moved), moved)[0]
        for moved in [(x + sign * step * v).requires_grad_() for sign in (1, -1)]
    ]
    torch.testing.assert_close(found, (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("spec", [*SPECS, "dot", "lightconv", "dynamicconv", "linformer"])
def test_the_gradients_of_each_example_are_found_in_one_call(spec):
    layer = build_mixer(spec, Size(D, H, LENGTH)).double()
    x, mask = tokens(3, LENGTH, D), mask_of("left", 3, LENGTH)

    def loss(parameters, x, mask):
        given = {"attention_mask": mask[None]}
        return functional_call(layer, parameters, (x[None],), given).pow(2).sum()

    parameters = {name: value.detach() for name, value in layer.named_parameters()}
    found = vmap(grad(loss), (None, 0, 0))(parameters, x, mask)
    for example in range(3):
        layer.zero_grad()
        one = slice(example, example + 1)
        layer(x[one], attention_mask=mask[one]).pow(2).sum().backward()
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(found[name][example], parameter.grad)


def test_so_are_those_of_a_model():
    model, tokens = build(SynthesizerForCausalLM, "random,dense+dot"), ids(2, 5)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])

    def loss(parameters, tokens, mask):
        given = {"attention_mask": mask[None], "use_cache": False}
        return functional_call(model, parameters, (tokens[None],), given).logits.pow(2).sum()

    parameters = {name: value.detach() for name, value in model.named_parameters()}
    found = vmap(grad(loss), (None, 0, 0))(parameters, tokens, mask)
    model(tokens, attention_mask=mask).logits.pow(2).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name].sum(0), parameter.grad)


@pytest.mark.parametrize("spec", [*SPECS, "dot", "linformer"])
def test_forward_mode_is_a_difference_of_outputs(spec):
    layer = build_mixer(spec, Size(D, H, LENGTH)).double()
    x, v, step = tokens(2, LENGTH, D), tokens(2, LENGTH, D, seed=2), 1e-5
    assert_is_difference(jvp(layer, (x,), (v,))[1], layer, x, v, step)
    with torch.no_grad(), forward_ad.dual_level():
        found = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, v))).tangent
        assert_is_difference(found, layer, x, v, step)


def assert_is_difference(found, function, x, v, step):
    difference = (function(x + step * v) - function(x - step * v)) / (2 * step)
    torch.testing.assert_close(found, difference, rtol=1e-6, atol=1e-8)


def test_forward_mode_reaches_a_memory():
    cross, memory = CrossAttention(D, H).double(), tokens(2, 5, D)
    attend = lambda x: cross(x, *cross.project(memory))  # noqa: E731
    x, v = tokens(2, 3, D), tokens(2, 3, D, seed=2)
    assert_is_difference(jvp(attend, (x,), (v,))[1], attend, x, v, 1e-5)


@needs_compiler
def test_the_kernel_of_few_rows_drops_no_tangent(built):
    layer = SyntheticAttention(256, 4, 8, "random+dot")
    x, v = torch.randn(1, 1, 256), torch.randn(1, 1, 256)
    with torch.no_grad():
        difference = layer(x + v) - layer(x)  # one token attends to itself: linear
        torch.testing.assert_close(jvp(layer, (x,), (v,))[1], difference, rtol=1e-4, atol=1e-5)
        each = vmap(lambda x: layer(x[None])[0])(torch.cat([x, v]))
        torch.testing.assert_close(each, layer(torch.cat([x, v])), rtol=1e-4, atol=1e-5)
