"""Tables at one rate for all, or at 30 times it: a plain PyTorch loop on python-docs.

    nice python tools/one_rate.py results/parameter-groups.json [SEED ...]

A byte-level language model of 2 layers is trained at each rate with parameter_groups' two choices.
A run that is in the file already is not made again. results/registered/parameter-groups.md says
what is asked.
"""

import json
import sys
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

import synthesizer_attention
from synthesizer_attention import SynthesizerConfig, SynthesizerForCausalLM, parameter_groups
from synthesizer_attention.data.corpora import python_docs

SEEDS, SYNTHESES, SCALES = (101, 102, 103), ("random", "random+dot"), (1.0, 30.0)
RATES = (3e-4, 1e-3, 1e-2, 3e-2)
STEPS, WARMUP, BATCH, LENGTH = 400, 40, 16, 64


def windows(rows: list[dict[str, str]]) -> Tensor:
    """One stream of bytes, cut into windows (N, LENGTH)."""
    stream = bytearray("\n\n".join(row["text"] for row in rows).encode())
    ids = torch.frombuffer(stream, dtype=torch.uint8).long()
    return ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)


@torch.no_grad()
def nats(model: SynthesizerForCausalLM, held_out: Tensor) -> float:
    """Loss per byte; every window has as many."""
    model.eval()
    losses = [model(ids, labels=ids).loss * len(ids) for ids in held_out.split(256)]
    return float(sum(losses)) / len(held_out)


def run(
    data: dict[str, Tensor], seed: int, synthesis: str, lr: float, table_rate: float
) -> dict[str, float]:
    """Train one model; its losses."""
    torch.manual_seed(seed)
    sizes = {"d_model": 64, "num_heads": 4, "num_layers": 2, "d_ff": 256, "max_len": LENGTH}
    model = SynthesizerForCausalLM(SynthesizerConfig(**sizes, vocab_size=256, synthesis=synthesis))
    groups = parameter_groups(model, lr=lr, table_rate=table_rate, weight_decay=0.01)
    optimizer = torch.optim.AdamW(groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARMUP, (STEPS - step) / (STEPS - WARMUP))
    )
    draw = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        ids = data["train"][torch.randint(len(data["train"]), (BATCH,), generator=draw)]
        model(ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return {name: nats(model, data[name]) for name in ("validation", "test")}


def main(out: Path, seeds: list[int]) -> None:
    """Add what is missing to the file."""
    torch.set_num_threads(1)
    data = {name: windows(rows) for name, rows in python_docs().items()}
    record = json.loads(out.read_text()) if out.exists() else {"runs": []}
    record["windows"] = {name: len(ids) for name, ids in data.items()}
    record["versions"] = {
        "synthesizer": synthesizer_attention.__version__,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }
    for seed, synthesis, lr, table_rate in product(seeds, SYNTHESES, RATES, SCALES):
        said = {"seed": seed, "synthesis": synthesis, "lr": lr, "table_rate": table_rate}
        if any(said.items() <= made.items() for made in record["runs"]):
            continue
        record["runs"].append(said | run(data, seed, synthesis, lr, table_rate))
        print(*record["runs"][-1].values(), sep="\t", flush=True)
        out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]] or list(SEEDS))
