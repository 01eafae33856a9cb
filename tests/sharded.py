"""Two processes that train sharded models beside whole ones; tests/test_distributed.py runs it.

Each model has a layer of every spec. Prints a line for each kind of model and optimizer: the
largest difference between losses.
"""

from itertools import product

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from synthesizer_attention.models.config import SynthesizerConfig
from synthesizer_attention.models.heads import MODELS
from synthesizer_attention.models.layers import Layer
from synthesizer_attention.run.recipe_keys import Train
from synthesizer_attention.training.build import initialize_by_name
from synthesizer_attention.training.optim import build_optimizer

CASES = list(product(("encoder_decoder", "decoder", "encoder"), ("adam", "adafactor")))
SPECS = ("dot", "random", "factorized_random", "dense", "factorized_dense", "random+dot")


def build(kind):
    sizes = {"d_model": 16, "num_heads": 2, "num_layers": len(SPECS), "d_ff": 16, "max_len": 12}
    specs = {"synthesis": ",".join(SPECS)}
    if kind == "encoder_decoder":  # whose decoder has them all
        sizes |= {"num_layers": 1, "num_decoder_layers": len(SPECS)}
        specs = {"synthesis": SPECS[-1], "decoder_synthesis": specs["synthesis"]}
    config = SynthesizerConfig(kind=kind, vocab_size=23, num_labels=3, **specs, **sizes)
    model = MODELS[kind](config)
    initialize_by_name(model, 1)
    return model


def inputs(kind, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 23, (4, 12), generator=generator)
    return {"input_ids": ids, "labels": ids[:, 0] % 3 if kind == "encoder" else ids}


def train(kind, optimizer, mesh=None):
    """The loss over both processes' batches, before and after a step."""
    model = build(kind)
    if mesh is not None:
        for layer in [module for module in model.modules() if isinstance(module, Layer)]:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = build_optimizer(model, Train(optimizer=optimizer, lr=1e-2))
    losses = []
    for step in range(2):
        mine = range(2) if mesh is None else [mesh.get_rank()]
        loss = torch.stack([model(**inputs(kind, 2 * step + rank)).loss for rank in mine]).mean()
        if step == 0:
            loss.backward()
            optimizer.step()
        total = loss.detach().clone()
        if mesh is not None:
            distributed.all_reduce(total)
            total /= 2
        losses.append(float(total))
    return losses


if __name__ == "__main__":
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    for case in CASES:
        losses = train(*case, mesh)
        if mesh.get_rank() == 0:
            pairs = zip(train(*case), losses, strict=True)
            print(*case, max(abs(one - other) for one, other in pairs), flush=True)
    distributed.destroy_process_group()
