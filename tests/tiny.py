"""Recipes of a few parameters, and the data they read."""

import os
import random
from pathlib import Path

import synthesizer_attention
from synthesizer_attention.run.recipe import Recipe, load_recipe

SIZE = ("d_model=8", "num_heads=2", "num_layers=1", "max_len=12", "dropout=0.0")
WORDS = [
    "the",
    "red",
    "green",
    "old",
    "cat",
    "dog",
    "bird",
    "sees",
    "likes",
    "hears",
    "a",
    "house",
    "tree",
]


def environment() -> dict[str, str]:
    """What a process of its own needs to run the code under test, on one thread."""
    source = str(Path(synthesizer_attention.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}


def write_text(path: Path, *, lines: int = 120, seed: int = 0) -> Path:
    """A file of made-up sentences."""
    rng = random.Random(seed)
    sentences = (" ".join(rng.choices(WORDS, k=rng.randint(3, 9))) for _ in range(lines))
    path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return path


def language_model(folder: Path, *changes: str, synthesis: str = "random+dot") -> Recipe:
    """A byte-level language model on a made-up text."""
    text = folder / "text.txt"
    if not text.exists():
        write_text(text)
    overrides = [f"model.{size}" for size in SIZE]
    overrides += ["text.kind=byte", "train.steps=12", "train.batch_tokens=48", "train.log_every=3"]
    overrides += ["train.checkpoint_every=4", "train.warmup=2", "evaluate.every=6"]
    overrides += ["data.holdout=0.1", "evaluate.limit=4"]
    return load_recipe(
        "language_modeling",
        synthesis=synthesis,
        overrides=[f"data.train={text}", *overrides, *changes],
    )
