"""The words of vocabulary.toml as records: nouns, verbs, adjectives, conjunctions."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CASES = ("nom", "acc", "dat", "gen")
GENDERS = "mfnp"  # masculine, feminine, neuter, and every plural

Pair = tuple[str, str]  # English, German


@dataclass(frozen=True)
class Noun:
    """An English noun and one German meaning of it."""

    english: str
    english_plural: str
    gender: str
    nominative: str
    genitive: str
    plural: str
    weak: bool

    def singular(self, case: str) -> str:
        """The German singular; a weak noun is like its genitive in all but the nominative."""
        is_genitive = case == "gen" or (self.weak and case != "nom")
        return self.genitive if is_genitive else self.nominative

    def plural_form(self, case: str) -> str:
        """The German plural; the dative adds an n unless the word ends in n or s."""
        return self.plural + "n" * (case == "dat" and self.plural[-1] not in "ns")


@dataclass(frozen=True)
class Sense:
    """One meaning of an ambiguous noun, and the people elsewhere in the sentence who mean it."""

    noun: Noun
    cues: tuple[Noun, ...]


@dataclass(frozen=True)
class Verb:
    """An English verb and its German, which may split: auf|hebt says hebt ... auf."""

    english: tuple[str, str, str]
    german: tuple[str, str, str]
    prefix: str
    auxiliary: str


@dataclass(frozen=True)
class Conjunction:
    """What makes a clause subordinate; in German that clause always opens the sentence or never."""

    english: str
    german: str
    opens: bool
    of_the_past: str = ""


def _noun(line: str) -> Noun:
    english, plural, gender, nominative, genitive, german = line.split()
    gender, weak = gender.replace("w", "m"), gender == "w"
    return Noun(english, plural, gender, nominative, genitive, german, weak)


def _verb(line: str) -> Verb:
    english, german = (side.split() for side in line.split(":"))
    third, base, past = (" ".join([word, *english[3:]]) for word in english[:3])
    prefix, _, finite = german[0].rpartition("|")
    participle = german[2].removesuffix("*")
    auxiliary = "sein" if german[2].endswith("*") else "haben"
    return Verb((third, base, past), (finite, german[1], participle), prefix, auxiliary)


def _senses(lines: str) -> list[list[Sense]]:
    """A list for each ambiguous English noun."""
    people = {cue.english: cue for cue in NOUNS["cues"]}
    senses: dict[str, list[Sense]] = {}
    for line in lines.splitlines():
        noun, cues = line.split(":")
        sense = Sense(_noun(noun), tuple(people[cue] for cue in cues.split()))
        senses.setdefault(sense.noun.english, []).append(sense)
    return list(senses.values())


def _endings(table: str) -> dict[Pair, str]:
    """The ending of each case and gender."""
    lines = [line.split() for line in table.splitlines()]
    return {
        (case, gender): ending.replace("-", "")
        for case, line in zip(CASES, lines, strict=True)
        for gender, ending in zip(GENDERS, line, strict=True)
    }


_FILE: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("vocabulary.toml").read_text(encoding="utf-8")
)
_AMBIGUOUS: str = _FILE["nouns"].pop("ambiguous")

NOUNS = {kind: [_noun(line) for line in s.splitlines()] for kind, s in _FILE["nouns"].items()}
VERBS = {kind: [_verb(line) for line in s.splitlines()] for kind, s in _FILE["verbs"].items()}
ENDINGS = {kind: _endings(table) for kind, table in _FILE["endings"].items()}
MODALS: list[list[str]] = _FILE["words"].pop("modals")
WORDS: dict[str, list[Pair]] = {
    kind: [(english, german) for english, german in pairs] for kind, pairs in _FILE["words"].items()
}
ADJECTIVES: dict[str, dict[str, list[Pair]]] = _FILE["adjectives"]  # by kind, first and second
CONJUNCTIONS = [Conjunction(word, **entry) for word, entry in _FILE["conjunctions"].items()]
AMBIGUOUS = _senses(_AMBIGUOUS)
UNINFLECTED = {"teur": "teuer"}
