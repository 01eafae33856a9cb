"""Compiled, every path gives what plain gives, in one graph and without a tensor of all pairs."""

import math

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from test_fast import MASKS, D, H, attention, mask_of, results
from variants import tokens

SPECS = ["dot", "random", "factorized_random", "relative", "dense", "factorized_dense"]
SPECS += ["random+dot", "factorized_random+factorized_dense+dot+dot"]
SLOW = [pytest.param(spec, marks=pytest.mark.slow) for spec in ("random", "factorized_dense")]


def compiled_results(layer, x, compiled, **given):
    whole = results(_Called(layer, compiled), x, "fast", **given)
    return {name.removeprefix("layer."): value for name, value in whole.items()}


class _Called(torch.nn.Module):
    """A layer whose forward is the compiled one."""

    def __init__(self, layer, compiled):
        super().__init__()
        self.layer, self.compiled = layer, [compiled]

    @property
    def path(self):
        return self.layer.path

    @path.setter
    def path(self, path):
        self.layer.path = path

    def forward(self, x, **given):
        return self.compiled[0](x, **given)


def largest_of(sizes):
    """A compiler that runs the graph as it is and notes the largest tensor in it."""

    def look(graph, inputs):
        for node in graph.graph.nodes:
            found = node.meta.get("val")
            for part in found if isinstance(found, list | tuple) else [found]:
                if isinstance(part, torch.Tensor):
                    sizes.append(part.numel())
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=look)


@pytest.mark.parametrize("spec", SPECS)
def test_compiled_equals_plain_for_every_mask(spec):
    torch._dynamo.reset()
    causal = spec not in ("relative", "dense", "random+dot")
    layer = attention(spec, length=23, causal=causal)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for kind in MASKS:
        x, mask = tokens(3, 23, D), mask_of(kind, 3, 23)
        expected = results(layer, x, "plain", attention_mask=mask)
        layer.path = "fast"
        found = compiled_results(layer, x, compiled, attention_mask=mask)
        for name, right in expected.items():
            torch.testing.assert_close(found[name], right, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("spec", ["random+dot", *SLOW])
def test_one_graph_serves_every_length_and_window(spec):
    torch._dynamo.reset()
    layer = attention(spec, length=29, causal=True)
    layer.window = 5
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (29, 17):
        x = tokens(3, length, D)
        expected = results(layer, x, "plain")
        layer.path = "fast"
        found = compiled_results(layer, x, compiled)
        for name, right in expected.items():
            torch.testing.assert_close(found[name], right)


@pytest.mark.parametrize("spec", ["random", "random+dot", "factorized_dense"])
@pytest.mark.parametrize("kind", ["none", "left"])
def test_no_pair_of_every_example_is_in_the_graph(spec, kind):
    torch._dynamo.reset()
    batch, length, sizes = 16, 70, []
    layer = attention(spec, length=length, causal=True, path="auto")
    compiled = torch.compile(layer, fullgraph=True, dynamic=False, backend=largest_of(sizes))
    x = tokens(batch, length, D).requires_grad_()
    compiled(x, attention_mask=mask_of(kind, batch, length)).sum().backward()
    assert max(sizes) < math.prod((batch, H, length, length)) / 2


def test_compiled_backward_keeps_no_output_of_the_attention():
    """The output projection keeps it already; on a CPU the attention's own gradient needs none."""
    torch._dynamo.reset()
    inputs = []

    def look(graph, given):
        back = torch.ops.synthesizer.attend_back.default
        inputs.extend(node.args for node in graph.graph.nodes if node.target is back)
        return make_boxed_func(graph.forward)

    layer, x = attention("dense", length=9, causal=True), tokens(3, 9, D).requires_grad_()
    torch.compile(layer, fullgraph=True, backend=aot_autograd(fw_compiler=look))(x).sum().backward()
    assert [given[-4] for given in inputs] == [None]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself
def test_inductor_compiles_it_too():
    torch._dynamo.reset()
    layer, x = attention("random+dot", length=70, causal=True).float(), tokens(2, 70, D).float()
    with torch.no_grad():
        layer.path = "plain"
        expected = layer(x)
        layer.path = "fast"
        found = torch.compile(layer, fullgraph=True)(x)
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself
def test_inductor_compiles_its_gradients_too():
    torch._dynamo.reset()
    layer, x = attention("random+dot", length=70, causal=True).float(), tokens(2, 70, D).float()
    expected = results(layer, x, "plain")
    layer.path = "fast"
    found = compiled_results(layer, x, torch.compile(layer, fullgraph=True))
    for name, right in expected.items():
        torch.testing.assert_close(found[name], right, rtol=2e-4, atol=2e-4)
