"""Pairs of English sentences, labelled by whether Tatoeba has one German translation for both.

python tools/paraphrases.py pairs   writes three csv files and their recipe into pairs/

Reads tatoeba_en_de/train.parquet (columns en, de) below SYNTHESIZER_DATA. Sentences of one
translation are dealt to ten folds, of which one tests and one validates, so that none stands in
two splits. For every pair of them there is one that differs, of sentences that have a paraphrase
too and of the same fold: half of these are neighbours in the alphabet, as "Tom is cooking
breakfast." and "Tom is crazy.", half are any two. A sentence is known by the first of its
translations; one pair of 7,620 that are called different shares another.
"""

import csv
import hashlib
import os
import random
import shutil
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq

FOLDS = 10
SPLITS = {0: "test", 1: "validation"}  # the other folds train
REACH = 3  # how far away a neighbour may be


def groups(data: Path) -> list[list[str]]:
    """English sentences that share a translation; each sentence is in one group at most."""
    table = pq.read_table(data / "tatoeba_en_de" / "train.parquet")
    by_german: dict[str, list[str]] = defaultdict(list)
    taken: set[str] = set()
    for english, german in zip(table["en"].to_pylist(), table["de"].to_pylist(), strict=True):
        if english not in taken:
            taken.add(english)
            by_german[german].append(english)
    return [sentences for _, sentences in sorted(by_german.items()) if len(sentences) > 1]


def fold_of(group: list[str]) -> int:
    """The same for all of a group, whatever else there is."""
    return int(hashlib.sha256(group[0].encode()).hexdigest(), 16) % FOLDS


def pairs(fold: list[list[str]], rng: random.Random) -> list[tuple[str, str, str]]:
    """As many that are the same as that differ, each in either order."""
    group_of = {sentence: index for index, group in enumerate(fold) for sentence in group}
    ordered = sorted(group_of, key=str.lower)
    place = {sentence: index for index, sentence in enumerate(ordered)}
    found = []
    for index, group in enumerate(fold):
        for first, second in pairwise(group):
            at = place[first]
            near = ordered[max(0, at - REACH) : at + REACH + 1]
            candidates = near if rng.random() < 0.5 else ordered
            others = [sentence for sentence in candidates if group_of[sentence] != index]
            found.append((*rng.sample([first, second], 2), "same"))
            if others:
                found.append((*rng.sample([first, rng.choice(others)], 2), "different"))
    rng.shuffle(found)
    return found


def main(out: Path) -> None:
    """Write the three files and the recipe that reads them."""
    folds: dict[int, list[list[str]]] = defaultdict(list)
    for group in groups(Path(os.environ["SYNTHESIZER_DATA"])):
        folds[fold_of(group)].append(group)
    rng = random.Random(0)
    splits: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for number, fold in sorted(folds.items()):
        splits[SPLITS.get(number, "train")] += pairs(fold, rng)
    out.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        with (out / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows((f"{first} || {second}", label) for first, second, label in rows)
        print(f"{split}: {len(rows)} pairs")
    shutil.copy(Path(__file__).with_suffix(".toml"), out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
