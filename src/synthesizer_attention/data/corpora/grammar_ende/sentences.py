"""English sentences beside their German, from a grammar that builds both at once.

What makes it hard to translate word by word: the German article, adjective and noun agree in case
and gender, and the case comes from a verb or preposition that may stand far away; the verb is
second in a main clause and last in a subordinate one, and may split in two; owners stand in the
opposite order; `it` is er, sie or es after a noun of the other clause; and many sentences hold an
ambiguous noun whose meaning, and with it its gender, only a person in the other clause gives away.
A sentence repeats a few words, so that the word before does not tell the place; and English puts
either clause first where German does not, so that the position does not tell it either.
"""

import re
from dataclasses import dataclass
from random import Random

from synthesizer_attention.data.corpora.drawing import DRAW, Row, Splits, draw_splits
from synthesizer_attention.data.corpora.grammar_ende.inflection import PERSONAL
from synthesizer_attention.data.corpora.grammar_ende.phrases import (
    Phrase,
    Phrases,
    Predicate,
    conjugate,
)
from synthesizer_attention.data.corpora.grammar_ende.vocabulary import (
    ADJECTIVES,
    AMBIGUOUS,
    CONJUNCTIONS,
    UNINFLECTED,
    VERBS,
    WORDS,
    Noun,
    Verb,
)


def splits(seed: int = DRAW, **sizes: int) -> Splits:
    """Sentence pairs; no English sentence comes twice."""
    wanted = {"train": 50_000, "validation": 500, "test": 1_000} | sizes
    return draw_splits(lambda rng: _Sentence(rng).row(), "en", seed, wanted)


@dataclass(frozen=True)
class _Clause:
    """A clause whose order is not settled yet."""

    subject: Phrase
    predicate: Predicate
    rest: list[tuple[str, str]]
    arguments: list[Phrase]
    adverb: tuple[str, str] | None
    adverb_first: bool

    def english(self) -> str:
        rest = [en for en, _ in self.rest]
        parts = [self.subject.en, self.predicate.en, *rest]
        if self.adverb:
            parts.insert(0 if self.adverb_first else len(parts), self.adverb[0])
        return " ".join(parts)

    def _middle(self) -> list[str]:
        middle = [de for _, de in self.rest]
        if self.adverb:
            middle.insert(bool(middle) and middle[0] in PERSONAL.values(), self.adverb[1])
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


@dataclass(frozen=True)
class _Frame:
    """A verb with what it governs: texts in both languages, and the phrases among them."""

    verb: Verb
    rest: list[tuple[str, str]]
    arguments: list[Phrase]


class _Sentence:
    """Draws one sentence of two clauses."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.phrases = Phrases(rng)

    def row(self) -> Row:
        """One pair, punctuated and capitalised."""
        cue, meant = self._clue()
        if self.rng.random() < 0.5:
            one = self._clause(cue, None)
            two = self._clause(None, meant, one)
        else:
            one = self._clause(None, meant)
            two = self._clause(cue, None, one)
        shape = self.rng.choices((self._subordinated, self._opposed), (3, 1))[0]
        en, de = shape(one, two)
        return {"en": _written(re.sub(r"\ba (?=[aeiou])", "an ", en)), "de": _written(de)}

    def _clue(self) -> tuple[Noun | None, Noun | None]:
        """Someone who gives a meaning away, and the ambiguous noun; or neither."""
        if self.rng.random() < 0.4:
            return None, None
        sense = self.rng.choice(self.rng.choice(AMBIGUOUS))
        return self.rng.choice(sense.cues), sense.noun

    def _subordinated(self, one: _Clause, two: _Clause) -> tuple[str, str]:
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

    def _opposed(self, one: _Clause, two: _Clause) -> tuple[str, str]:
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
        has_clause = any(phrase.has_clause for phrase in frame.arguments)
        adverb = self._adverb(predicate) if self.rng.random() < 0.12 else None
        first = has_clause or self.rng.random() < 0.5
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
        german = UNINFLECTED.get(stem, stem)
        is_past = self.rng.random() < 0.5
        verb, finite = ("was", "war") if is_past else ("is", "ist")
        predicate = Predicate(f"{verb} {english}", finite, german, f"{german} {finite}", is_past)
        return _Clause(subject, predicate, [], [subject], None, False)

    def _adverb(self, predicate: Predicate) -> tuple[str, str]:
        times = WORDS["past_time"] if predicate.is_past else WORDS["present_time"]
        return self.rng.choice(WORDS["any_time"] + times)

    def _frame(self, cue: Noun | None, meant: Noun | None, antecedent: Phrase | None) -> _Frame:
        if meant:
            verb = self.rng.choice(VERBS["of_anything"] + VERBS["of_a_thing"])
            return _frame(verb, self.phrases.thing("acc", noun=meant))
        if antecedent:
            every = VERBS["of_anything"] + VERBS["of_a_thing"]
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
        return _Frame(frame.verb, [*frame.rest, self.phrases.where("acc")], frame.arguments)

    def _staying(self) -> _Frame:
        return _Frame(self.rng.choice(VERBS["staying"]), [self.phrases.where("dat")], [])

    def _going(self) -> _Frame:
        where = self.phrases.where("acc", onward=True)
        return _Frame(self.rng.choice(VERBS["going"]), [where], [])


def _frame(verb: Verb, *objects: Phrase) -> _Frame:
    return _Frame(verb, [(phrase.en, phrase.de) for phrase in objects], list(objects))


def _written(text: str) -> str:
    """Text with its commas put in order, a capital and a full stop."""
    text = re.sub(r"(\s*,)+", ",", " ".join(text.split())).removesuffix(",")
    return f"{text[0].upper()}{text[1:]}."
