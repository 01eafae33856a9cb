"""English sentences beside their German, from a grammar that builds both at once.

What makes it hard to translate word by word: the German article, adjective and noun agree in case
and gender, and the case comes from a verb or preposition that may stand far away; the verb is
second in a main clause and last in a subordinate one, and may split in two; owners stand in the
opposite order; `it` is er, sie or es after a noun of the other clause; and many sentences hold an
ambiguous noun whose meaning, and with it its gender, only a person in the other clause gives away.
A sentence repeats a few words, so that the word before does not tell the place; and English puts
either clause first where German does not, so that the position does not tell it either.

grammar.toml holds the words. Cases are nom, acc, dat and gen; genders m, f, n, and p, every plural.
"""

import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

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


class Sense(NamedTuple):
    """One meaning of an ambiguous noun, and the people elsewhere in the sentence who mean it."""

    noun: Noun
    cues: tuple[Noun, ...]


class Verb(NamedTuple):
    """An English verb and its German, which may split: auf|hebt says hebt ... auf."""

    english: tuple[str, str, str]
    german: tuple[str, str, str]
    prefix: str
    auxiliary: tuple[str, str]


class Conjunction(NamedTuple):
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
    auxiliary = ("ist", "sind") if german[2].endswith("*") else ("hat", "haben")
    return Verb(
        (third, base, past), (finite, german[1], german[2].removesuffix("*")), prefix, auxiliary
    )


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
        for case, line in zip(("nom", "acc", "dat", "gen"), lines, strict=True)
        for gender, ending in zip("mfnp", line, strict=True)
    }


_FILE: dict[str, Any] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
_AMBIGUOUS: str = _FILE["nouns"].pop("ambiguous")
MODALS: list[list[str]] = _FILE["words"].pop("modals")
NOUNS = {kind: [_noun(line) for line in s.splitlines()] for kind, s in _FILE["nouns"].items()}
VERBS = {kind: [_verb(line) for line in s.splitlines()] for kind, s in _FILE["verbs"].items()}
WORDS: dict[str, list[Pair]] = {
    kind: [(english, german) for english, german in pairs] for kind, pairs in _FILE["words"].items()
}
ADJECTIVES: dict[str, dict[str, list[Pair]]] = _FILE["adjectives"]  # by kind, first and second
CONJUNCTIONS = [Conjunction(word, **entry) for word, entry in _FILE["conjunctions"].items()]
AMBIGUOUS = _senses(_AMBIGUOUS)
_UNINFLECTED = {"teur": "teuer"}
_ENDINGS = {kind: _endings(table) for kind, table in _FILE["endings"].items()}
_ARTICLE, _PERSONAL = _ENDINGS["article"], _ENDINGS["personal"]
_RELATIVE = _ARTICLE | {("dat", "p"): "denen"}
_DER_WORDS = {"the": "d", "this": "dies", "these": "dies", "every": "jed"}
_EIN_WORDS = {"a": "ein", "no": "kein", "my": "mein"}
_CONTRACTED = {"in dem": "im", "in das": "ins", "von dem": "vom"}
_PERSON_PRONOUN = {"m": "he", "f": "she", "p": "they"}
_OBJECT_PRONOUN = {"he": "him", "she": "her", "it": "it", "they": "them"}
_ONES = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_EINER = ["ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
_ZEHNER = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]


def determiner(english: str, case: str, gender: str) -> str:
    """The German for an English determiner, agreeing with its noun."""
    if english == "the":
        return _ARTICLE[case, gender]
    if english in _EIN_WORDS:
        return _EIN_WORDS[english] + _ENDINGS["like_ein"][case, gender]
    return _DER_WORDS[english] + _ENDINGS["like_der"][case, gender]


def adjective(stem: str, after: str, case: str, gender: str) -> str:
    """An adjective's stem with the ending that the determiner before it asks for; "" is none."""
    kind = "after_ein" if after in _EIN_WORDS else "after_der" if after in _DER_WORDS else "alone"
    return stem + _ENDINGS[kind][case, gender]


def contracted(preposition: str, phrase: str) -> str:
    """Preposition and phrase as they are said: in dem Garten is im Garten."""
    article, _, rest = phrase.partition(" ")
    together = f"{preposition} {article}"
    return f"{_CONTRACTED.get(together, together)} {rest}"


def number_words(number: int) -> Pair:
    """2 to 9 and 20 to 99 in words; German says the unit before the ten."""
    ten, unit = number // 10 - 2, number % 10 - 1
    if number < 10:
        return _ONES[unit], _EINER[unit]
    if unit < 0:
        return _TENS[ten], _ZEHNER[ten]
    return f"{_TENS[ten]}-{_ONES[unit]}", f"{_EINER[unit]}und{_ZEHNER[ten]}"


@dataclass(frozen=True)
class Phrase:
    """A noun phrase, or the pronoun for one; gender is p in the plural."""

    en: str
    de: str
    gender: str
    pronoun: str
    has_clause: bool = False

    @property
    def is_plural(self) -> bool:
        """Whether its verb is plural."""
        return self.gender == "p"

    def again(self, case: str) -> "Phrase":
        """The pronoun that points back to it."""
        english = self.pronoun if case == "nom" else _OBJECT_PRONOUN[self.pronoun]
        return Phrase(english, _PERSONAL[case, self.gender], self.gender, self.pronoun)

    def extended(self, en: str, de: str, *, has_clause: bool = False) -> "Phrase":
        """With something behind it."""
        return replace(self, en=f"{self.en} {en}", de=f"{self.de} {de}", has_clause=has_clause)


class Predicate(NamedTuple):
    """A verb in its tense: the finite part, what closes a main clause, what ends a subordinate."""

    en: str
    finite: str
    closing: str
    final: str
    is_past: bool = False


def conjugate(rng: Random, verb: Verb, *, plural: bool) -> Predicate:
    """The verb in the present, in the past (German perfect) or after a modal."""
    third, base, past = verb.english
    finite, infinitive, participle = verb.german
    tense = rng.choice(("present", "past", "modal"))
    if tense == "past":
        auxiliary = verb.auxiliary[plural]
        return Predicate(past, auxiliary, participle, f"{participle} {auxiliary}", is_past=True)
    if tense == "modal":
        modal = rng.choice(MODALS)
        english, german = modal[plural], modal[2 + plural]
        return Predicate(f"{english} {base}", german, infinitive, f"{infinitive} {german}")
    if plural:
        third, finite = base, infinitive.removeprefix(verb.prefix)
    return Predicate(third, finite, verb.prefix, verb.prefix + finite)


class _Phrases:
    """Draws the phrases of one sentence from few words, so that they recur."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.people = rng.sample(NOUNS["persons"], 2)
        self.animals = rng.sample(NOUNS["animals"], 1)
        self.lying = rng.sample(NOUNS["lying"], 1)
        self.standing = rng.sample(NOUNS["standing"], 1)
        self.surfaces = rng.sample(NOUNS["surfaces"], 1)
        self.places = rng.sample(NOUNS["places"], 1)
        self.adjectives = {
            kind: [rng.sample(words, 2) for words in (known["first"], known["second"])]
            for kind, known in ADJECTIVES.items()
        }

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def person(self, case: str, depth: int = 1, noun: Noun | None = None) -> Phrase:
        """Someone, perhaps with a relative clause (depth 1) or two people (a plural)."""
        noun = noun or self.rng.choice(self.people)
        if depth and self.chance(0.03):
            one = self.person(case, 0, noun)
            two = self.person(case, 0, self._someone_else(noun))
            return Phrase(f"{one.en} and {two.en}", f"{one.de} und {two.de}", "p", "they")
        return self._noun_phrase(noun, case, "person", depth)

    def animal(self, case: str, depth: int = 1) -> Phrase:
        return self._noun_phrase(self.rng.choice(self.animals), case, "animal", depth)

    def thing(self, case: str, depth: int = 1, noun: Noun | None = None) -> Phrase:
        """A thing that can be carried."""
        noun = noun or self.rng.choice(self.lying + self.standing)
        return self._noun_phrase(noun, case, "thing", depth)

    def where(self, case: str, *, onward: bool = False) -> Pair:
        """A place, in the dative of rest or the accusative of motion; `onward` says into, onto."""
        inside = self.chance(0.5)
        en, de = self.rng.choice(WORDS["in_places" if inside else "on_surfaces"])
        noun = self.rng.choice(self.places if inside else self.surfaces)
        phrase = self._noun_phrase(noun, case, "place" if inside else "thing", 0)
        onto = "to" * (onward and en in ("in", "on"))
        further = self.where("dat") if case == "acc" and self.chance(0.03) else ("", "")
        return f"{en}{onto} {phrase.en} {further[0]}", f"{contracted(de, phrase.de)} {further[1]}"

    def stuff(self, case: str) -> Pair:
        """Something uncounted, without an article: its adjective alone shows the case."""
        noun = self.rng.choice(NOUNS["stuff"])
        english, stem = self.rng.choice(WORDS["of_stuff"])
        german = adjective(stem, "", case, noun.gender)
        return f"{english} {noun.english}", f"{german} {noun.singular(case)}"

    def _noun_phrase(self, noun: Noun, case: str, kind: str, depth: int) -> Phrase:
        is_person = kind == "person"
        gender = "p" if self.chance(0.12) else noun.gender
        en, de, after = self._determiner(case, gender)
        owner = None
        if depth and self.chance(0.1):
            owner = self._owner(noun)
            en, de, after = f"{owner[0]}'s", determiner("the", case, gender), "the"
        named = self._named(noun, case, gender, kind, after)
        de = f"{de} {named[1]} {owner[1]}" if owner else f"{de} {named[1]}"
        pronoun = _PERSON_PRONOUN[gender] if is_person else "they" if gender == "p" else "it"
        phrase = Phrase(f"{en} {named[0]}", de, gender, pronoun)
        if depth and not owner:
            if self.chance(0.03):
                en, de = self._relative_clause(phrase, is_person=is_person)
                return phrase.extended(en, f", {de} ,", has_clause=True)
            if self.chance(0.03):
                return phrase.extended(*self._attached(is_person=is_person))
        return phrase

    def _named(self, noun: Noun, case: str, gender: str, kind: str, after: str) -> Pair:
        """Up to two adjectives and the noun, as they stand after a determiner."""
        groups = self.adjectives[kind]
        described = [self.rng.choice(group) for group in groups if self.chance(0.15)]
        english = noun.english_plural if gender == "p" else noun.english
        german = noun.plural_form(case) if gender == "p" else noun.singular(case)
        stems = [adjective(stem, after, case, gender) for _, stem in described]
        return " ".join([*(word for word, _ in described), english]), " ".join([*stems, german])

    def _determiner(self, case: str, gender: str) -> tuple[str, str, str]:
        """English and German, and what the adjective's ending goes by: numbers do not count."""
        if gender == "p" and self.chance(0.1):
            return *number_words(self.rng.choice((*range(2, 10), *range(20, 40)))), ""
        if gender == "p":
            english = self.rng.choices(("the", "these", "no", "my"), (8, 1, 1, 1))[0]
        else:
            english = self.rng.choices(("the", "a", "this", "every", "my"), (8, 3, 1, 1, 1))[0]
        return english, determiner(english, case, gender), english

    def _someone_else(self, noun: Noun) -> Noun:
        return self.rng.choice([other for other in self.people if other != noun])

    def _owner(self, owned: Noun) -> Pair:
        """A genitive, which may have an owner in turn: English names them in the opposite order."""
        noun = self._someone_else(owned)
        english, german = self._named(noun, "gen", noun.gender, "person", "the")
        german = f"{determiner('the', 'gen', noun.gender)} {german}"
        if self.chance(0.15):
            above = self._owner(noun)
            return f"{above[0]}'s {english}", f"{german} {above[1]}"
        return f"the {english}", german

    def _attached(self, *, is_person: bool) -> Pair:
        """What follows a noun: where it is, what it has, or whom it is from."""
        if is_person or self.chance(0.3):
            held = self.thing("dat", 0) if self.chance(0.5) else self.animal("dat", 0)
            return f"with {held.en}", f"mit {held.de}"
        if self.chance(0.5):
            giver = self.person("dat", 0)
            return f"from {giver.en}", contracted("von", giver.de)
        return self.where("dat")

    def _relative_clause(self, head: Phrase, *, is_person: bool) -> Pair:
        """A clause whose pronoun has the gender of its head and the case of its own verb."""
        shapes = (self._who, self._whom) if is_person else (self._that_is, self._that)
        return self.rng.choice(shapes)(head)

    def _who(self, head: Phrase) -> Pair:
        if self.chance(0.5):
            verb, other = self.rng.choice(VERBS["of_a_thing"]), self.thing("acc", 0)
        else:
            verb, other = self.rng.choice(VERBS["with_dative"]), self.person("dat", 0)
        does = conjugate(self.rng, verb, plural=head.is_plural)
        relative = _RELATIVE["nom", head.gender]
        return f"who {does.en} {other.en}", f"{relative} {other.de} {does.final}"

    def _whom(self, head: Phrase) -> Pair:
        kind, case = ("with_dative", "dat") if self.chance(0.5) else ("of_a_person", "acc")
        return self._seen(head, "whom", kind, case)

    def _that(self, head: Phrase) -> Pair:
        return self._seen(head, "that", "of_anything", "acc")

    def _seen(self, head: Phrase, english: str, kind: str, case: str) -> Pair:
        """The head is the object of its clause."""
        verb, someone = self.rng.choice(VERBS[kind]), self.person("nom", 0)
        does = conjugate(self.rng, verb, plural=someone.is_plural)
        relative = _RELATIVE[case, head.gender]
        return f"{english} {someone.en} {does.en}", f"{relative} {someone.de} {does.final}"

    def _that_is(self, head: Phrase) -> Pair:
        english, german = ("are", "sind") if head.is_plural else ("is", "ist")
        en, de = self.where("dat")
        return f"that {english} {en}", f"{_RELATIVE['nom', head.gender]} {de} {german}"


@dataclass(frozen=True)
class _Clause:
    """A clause whose order is not settled yet."""

    subject: Phrase
    predicate: Predicate
    rest: list[Pair]
    arguments: list[Phrase]
    adverb: Pair | None = None
    adverb_first: bool = False

    def english(self) -> str:
        parts = [self.subject.en, self.predicate.en, *(en for en, _ in self.rest)]
        if self.adverb:
            parts.insert(0 if self.adverb_first else len(parts), self.adverb[0])
        return " ".join(parts)

    def _middle(self) -> list[str]:
        middle = [de for _, de in self.rest]
        if self.adverb:
            middle.insert(bool(middle) and middle[0] in _PERSONAL.values(), self.adverb[1])
        return middle

    def main(self) -> str:
        """The verb second, after the subject or the adverb."""
        if self.adverb and self.adverb_first:
            rest = [de for _, de in self.rest]
            opening = [self.adverb[1], self.predicate.finite, self.subject.de]
            return " ".join([*opening, *rest, self.predicate.closing])
        opening = [self.subject.de, self.predicate.finite]
        return " ".join([*opening, *self._middle(), self.predicate.closing])

    def inverted(self) -> str:
        """The verb first, since a whole clause precedes it."""
        opening = [self.predicate.finite, self.subject.de]
        return " ".join([*opening, *self._middle(), self.predicate.closing])

    def subordinate(self) -> str:
        """The verb last."""
        return " ".join([self.subject.de, *self._middle(), self.predicate.final])


class _Frame(NamedTuple):
    """A verb with what it governs: texts in both languages, and the phrases among them."""

    verb: Verb
    rest: list[Pair]
    arguments: list[Phrase]


def _frame(verb: Verb, *objects: Phrase) -> _Frame:
    return _Frame(verb, [(phrase.en, phrase.de) for phrase in objects], list(objects))


class _Sentence:
    """Draws one sentence of two clauses."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.phrases = _Phrases(rng)

    def pair(self) -> Pair:
        """Both languages, without punctuation."""
        cue = meant = None  # someone who gives a meaning away, and the ambiguous noun; or neither
        if self.rng.random() >= 0.4:
            sense = self.rng.choice(self.rng.choice(AMBIGUOUS))
            cue, meant = self.rng.choice(sense.cues), sense.noun
        if self.rng.random() < 0.5:
            one = self._clause(cue, None)
            two = self._clause(None, meant, one)
        else:
            one = self._clause(None, meant)
            two = self._clause(cue, None, one)
        shape = self.rng.choices((self._subordinated, self._opposed), (3, 1))[0]
        return shape(one, two)

    def _subordinated(self, one: _Clause, two: _Clause) -> Pair:
        """Either clause first in English; which is first in German is up to the conjunction."""
        joint = self.rng.choice(CONJUNCTIONS)
        german = (two.predicate.is_past and joint.of_the_past) or joint.german
        if self.rng.random() < 0.5:
            en = f"{one.english()} {joint.english} {two.english()}"
        else:
            en = f"{joint.english} {two.english()} , {one.english()}"
        if joint.opens:
            return en, f"{german} {two.subordinate()} , {one.inverted()}"
        return en, f"{one.main()} , {german} {two.subordinate()}"

    def _opposed(self, one: _Clause, two: _Clause) -> Pair:
        return f"{one.english()} , but {two.english()}", f"{one.main()} , aber {two.main()}"

    def _clause(
        self, cue: Noun | None, meant: Noun | None, before: _Clause | None = None
    ) -> _Clause:
        """A clause that holds the cue or the ambiguous noun, if any, and may point back."""
        subject = None
        antecedent = self._antecedent(before) if before and self.rng.random() < 0.7 else None
        if antecedent and antecedent.pronoun != "it":
            subject, antecedent = antecedent.again("nom"), None
        elif antecedent and not meant and not cue and self.rng.random() < 0.5:
            return self._description(antecedent.again("nom"))
        elif cue:
            subject, cue = self.phrases.person("nom", noun=cue), None
        subject = subject or self.phrases.person("nom")
        frame = self._frame(cue, meant, antecedent)
        predicate = conjugate(self.rng, frame.verb, plural=subject.is_plural)
        adverb = None
        if self.rng.random() < 0.12:
            times = WORDS["past_time" if predicate.is_past else "present_time"]
            adverb = self.rng.choice(WORDS["any_time"] + times)
        first = any(each.has_clause for each in frame.arguments) or self.rng.random() < 0.5
        arguments = [subject, *frame.arguments]
        return _Clause(subject, predicate, frame.rest, arguments, adverb, first)

    def _antecedent(self, before: _Clause) -> Phrase | None:
        """Something of the clause before that a pronoun can mean without doubt."""
        genders: dict[str, set[str]] = {}
        for phrase in before.arguments:
            genders.setdefault(phrase.pronoun, set()).add(phrase.gender)
        clear = [phrase for phrase in before.arguments if len(genders[phrase.pronoun]) == 1]
        things = [phrase for phrase in clear if phrase.pronoun == "it"]
        return self.rng.choice(things or clear) if clear else None

    def _description(self, subject: Phrase) -> _Clause:
        english, stem = self.rng.choice(ADJECTIVES["thing"]["first"])
        german = _UNINFLECTED.get(stem, stem)
        is_past = self.rng.random() < 0.5
        verb, finite = ("was", "war") if is_past else ("is", "ist")
        predicate = Predicate(f"{verb} {english}", finite, german, f"{german} {finite}", is_past)
        return _Clause(subject, predicate, [], [subject])

    def _frame(self, cue: Noun | None, meant: Noun | None, antecedent: Phrase | None) -> _Frame:
        every = VERBS["of_anything"] + VERBS["of_a_thing"]
        if meant:
            return _frame(self.rng.choice(every), self.phrases.thing("acc", noun=meant))
        if antecedent:
            one_word = [verb for verb in every if " " not in verb.english[0]]
            return _frame(self.rng.choice(one_word), antecedent.again("acc"))
        if cue or self.rng.random() < 0.4:
            return self.rng.choice((self._meeting, self._helping, self._giving))(cue)
        return self.rng.choice(
            (self._handling, self._trading, self._placing, self._staying, self._going)
        )()

    def _meeting(self, cue: Noun | None) -> _Frame:
        verb = self.rng.choice(VERBS["of_anything"] + VERBS["of_a_person"])
        return _frame(verb, self.phrases.person("acc", noun=cue))

    def _helping(self, cue: Noun | None) -> _Frame:
        return _frame(self.rng.choice(VERBS["with_dative"]), self.phrases.person("dat", noun=cue))

    def _giving(self, cue: Noun | None) -> _Frame:
        receiver, gift = self.phrases.person("dat", 0, cue), self.phrases.thing("acc")
        return _frame(self.rng.choice(VERBS["giving"]), receiver, gift)

    def _handling(self) -> _Frame:
        if self.rng.random() < 0.3:
            return _frame(self.rng.choice(VERBS["of_anything"]), self.phrases.animal("acc"))
        verb = self.rng.choice(VERBS["of_anything"] + VERBS["of_a_thing"])
        return _frame(verb, self.phrases.thing("acc"))

    def _trading(self) -> _Frame:
        return _Frame(self.rng.choice(VERBS["of_a_thing"][:2]), [self.phrases.stuff("acc")], [])

    def _placing(self) -> _Frame:
        """To place is legen or stellen after what is placed; where to is in the accusative."""
        things, place = self.rng.choice(
            (
                (self.phrases.lying, VERBS["putting_down"]),
                (self.phrases.standing, VERBS["putting_up"]),
                (self.phrases.standing, VERBS["moving_things"]),
            )
        )
        thing = self.phrases.thing("acc", 0, self.rng.choice(things))
        frame = _frame(self.rng.choice(place), thing)
        return frame._replace(rest=[*frame.rest, self.phrases.where("acc")])

    def _staying(self) -> _Frame:
        return _Frame(self.rng.choice(VERBS["staying"]), [self.phrases.where("dat")], [])

    def _going(self) -> _Frame:
        where = self.phrases.where("acc", onward=True)
        return _Frame(self.rng.choice(VERBS["going"]), [where], [])


def draw_pair(rng: Random) -> dict[str, str]:
    """One sentence in both languages, capitalised, its commas in order, with a full stop."""
    en, de = _Sentence(rng).pair()
    written = {}
    for name, text in {"en": re.sub(r"\ba (?=[aeiou])", "an ", en), "de": de}.items():
        text = re.sub(r"(\s*,)+", ",", " ".join(text.split())).removesuffix(",")
        written[name] = f"{text[0].upper()}{text[1:]}."
    return written
