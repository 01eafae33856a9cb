"""Small made-up data for the tests of tasks, and recipes that read it."""

import json

from synthesizer_attention.run.recipe import load_recipe

ENGLISH = ["cat", "dog", "bird", "fish", "horse", "mouse", "cow"]
GERMAN = ["Katze", "Hund", "Vogel", "Fisch", "Pferd", "Maus", "Kuh"]
SMALL = ["text.vocab_size=300", "model.d_model=16", "model.num_heads=2", "train.batch_tokens=200"]


def pairs(count):
    """Distinct pairs of enumerations."""
    for number in range(count):
        chosen = [number % 7, number // 7 % 7, number // 49 % 7, number % 5]
        yield tuple(" ".join(words[i] for i in chosen) for words in (ENGLISH, GERMAN))


def write_tsv(path, rows):
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return str(path)


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def small(name, *overrides):
    """A built-in recipe made small."""
    return load_recipe(name, overrides=[*SMALL, *overrides])
