"""A few rows times a weight: the compiled kernel gives what torch gives, or leaves it to torch."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from synthesizer_attention.attention import hook
from synthesizer_attention.attention.synthesis import project_heads
from test_kernel import built, library, needs_compiler

__all__ = ["built", "library"]  # fixtures


@pytest.fixture
def any_size(built, monkeypatch):
    """The kernel, for small weights as well."""
    monkeypatch.setattr(hook, "LARGE", 0)


@needs_compiler
@pytest.mark.parametrize("count", [1, 4, 7, 16, 35, 64])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_kernel_gives_what_torch_gives(count, threads, any_size):
    torch.set_num_threads(threads)
    for inputs, outputs, bias in ((16, 8, True), (37, 21, True), (512, 33, False), (5, 1, True)):
        layer, x = nn.Linear(inputs, outputs, bias=bias), torch.randn(count, 1, inputs)
        with torch.no_grad():
            assert hook.few_rows(x, layer.weight, layer.bias) is not None
            torch.testing.assert_close(hook.linear(layer, x), layer(x), rtol=1e-5, atol=1e-5)
    weight, x = torch.randn(3, 37, 32), torch.randn(count, 1, 37)
    with torch.no_grad():
        found = hook.few_rows(x, weight)
        assert found is not None
        expected = torch.einsum("btd,hdk->bthk", x, weight).flatten(2)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
        heads = project_heads(x, weight)
    torch.testing.assert_close(heads, project_heads(x.repeat(1, 2, 1), weight)[:, :, :1])


@needs_compiler
def test_torch_does_what_the_kernel_cannot(any_size):
    layer, x = nn.Linear(16, 8), torch.randn(1, 1, 16)
    assert hook.linear(layer, x).requires_grad
    with torch.no_grad():
        assert hook.few_rows(x.double(), layer.weight) is None
        assert hook.few_rows(x, layer.weight.t()[:8]) is None
        assert hook.few_rows(torch.randn(65, 1, 16), layer.weight) is None
        assert hook.few_rows(x, torch.randn(2, 16, 5)) is None  # no whole vectors
        with torch.autocast("cpu", torch.bfloat16):
            assert hook.linear(layer, x).dtype == torch.bfloat16


@needs_compiler
def test_a_hook_or_another_layer_is_called(any_size):
    layer, x, seen = nn.Linear(16, 8), torch.randn(1, 1, 16), []
    layer.register_forward_hook(lambda *given: seen.append(given))
    with torch.no_grad():
        hook.linear(layer, x)
        assert len(seen) == 1
        twice = nn.Sequential(nn.Linear(16, 4), nn.ReLU())
        assert torch.equal(hook.linear(twice, x), F.relu(twice[0](x)))
