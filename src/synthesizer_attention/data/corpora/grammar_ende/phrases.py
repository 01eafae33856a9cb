"""Noun phrases, relative clauses and verbs of grammar-ende, English and German at once."""

from dataclasses import dataclass
from random import Random

from synthesizer_attention.data.corpora.grammar_ende.inflection import (
    PERSONAL,
    RELATIVE,
    adjective,
    contracted,
    determiner,
    number_word,
)
from synthesizer_attention.data.corpora.grammar_ende.vocabulary import (
    ADJECTIVES,
    MODALS,
    NOUNS,
    VERBS,
    WORDS,
    Noun,
    Verb,
)

_PERSON_PRONOUN = {"m": "he", "f": "she", "p": "they"}
_OBJECT_PRONOUN = {"he": "him", "she": "her", "it": "it", "they": "them"}
_AUXILIARY = {"haben": ("hat", "haben"), "sein": ("ist", "sind")}
_ONES = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


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
        return Phrase(english, PERSONAL[case, self.gender], self.gender, self.pronoun)


@dataclass(frozen=True)
class Predicate:
    """A verb in its tense: the finite part, what closes a main clause, what ends a subordinate."""

    en: str
    finite: str
    closing: str
    final: str
    is_past: bool


def conjugate(rng: Random, verb: Verb, *, plural: bool) -> Predicate:
    """The verb in the present, in the past (German perfect) or after a modal."""
    third, base, past = verb.english
    finite, infinitive, participle = verb.german
    tense = rng.choice(("present", "past", "modal"))
    if tense == "past":
        auxiliary = _AUXILIARY[verb.auxiliary][plural]
        return Predicate(past, auxiliary, participle, f"{participle} {auxiliary}", is_past=True)
    if tense == "modal":
        modal = rng.choice(MODALS)
        english, german = modal[plural], modal[2 + plural]
        final = f"{infinitive} {german}"
        return Predicate(f"{english} {base}", german, infinitive, final, is_past=False)
    if plural:
        third, finite = base, infinitive.removeprefix(verb.prefix)
    return Predicate(third, finite, verb.prefix, verb.prefix + finite, is_past=False)


def _english_number(number: int) -> str:
    if number < 10:
        return _ONES[number - 1]
    ten = _TENS[number // 10 - 2]
    return f"{ten}-{_ONES[number % 10 - 1]}" if number % 10 else ten


class Phrases:
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
        """True that often."""
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
        """An animal."""
        return self._noun_phrase(self.rng.choice(self.animals), case, "animal", depth)

    def thing(self, case: str, depth: int = 1, noun: Noun | None = None) -> Phrase:
        """A thing that can be carried."""
        noun = noun or self.rng.choice(self.lying + self.standing)
        return self._noun_phrase(noun, case, "thing", depth)

    def where(self, case: str, *, onward: bool = False) -> tuple[str, str]:
        """A place, in the dative of rest or the accusative of motion; `onward` says into, onto."""
        if self.chance(0.5):
            (en, de), noun = self.rng.choice(WORDS["in_places"]), self.rng.choice(self.places)
            phrase = self._noun_phrase(noun, case, "place", 0)
        else:
            (en, de), noun = self.rng.choice(WORDS["on_surfaces"]), self.rng.choice(self.surfaces)
            phrase = self._noun_phrase(noun, case, "thing", 0)
        onto = "to" * (onward and en in ("in", "on"))
        further = self.where("dat") if case == "acc" and self.chance(0.03) else ("", "")
        return f"{en}{onto} {phrase.en} {further[0]}", f"{contracted(de, phrase.de)} {further[1]}"

    def stuff(self, case: str) -> tuple[str, str]:
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
            en, de, after = f"{owner.en}'s", determiner("the", case, gender), "the"
        named = self._named(noun, case, gender, kind, after)
        de = f"{de} {named[1]} {owner.de}" if owner else f"{de} {named[1]}"
        pronoun = _PERSON_PRONOUN[gender] if is_person else "they" if gender == "p" else "it"
        phrase = Phrase(f"{en} {named[0]}", de, gender, pronoun)
        return self._extended(phrase, is_person=is_person) if depth and not owner else phrase

    def _named(self, noun: Noun, case: str, gender: str, kind: str, after: str) -> tuple[str, str]:
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
            number = self.rng.choice((*range(2, 10), *range(20, 40)))
            return _english_number(number), number_word(number), ""
        if gender == "p":
            english = self.rng.choices(("the", "these", "no", "my"), (8, 1, 1, 1))[0]
        else:
            english = self.rng.choices(("the", "a", "this", "every", "my"), (8, 3, 1, 1, 1))[0]
        return english, determiner(english, case, gender), english

    def _someone_else(self, noun: Noun) -> Noun:
        return self.rng.choice([other for other in self.people if other != noun])

    def _owner(self, owned: Noun) -> Phrase:
        """A genitive, which may have an owner in turn: English names them in the opposite order."""
        noun = self._someone_else(owned)
        english, german = self._named(noun, "gen", noun.gender, "person", "the")
        german = f"{determiner('the', 'gen', noun.gender)} {german}"
        if self.chance(0.15):
            above = self._owner(noun)
            return Phrase(f"{above.en}'s {english}", f"{german} {above.de}", noun.gender, "it")
        return Phrase(f"the {english}", german, noun.gender, "it")

    def _extended(self, phrase: Phrase, *, is_person: bool) -> Phrase:
        if self.chance(0.03):
            en, de = self._relative_clause(phrase, is_person=is_person)
            return Phrase(
                f"{phrase.en} {en}", f"{phrase.de} , {de} ,", phrase.gender, phrase.pronoun, True
            )
        if self.chance(0.03):
            en, de = self._attached(is_person=is_person)
            return Phrase(f"{phrase.en} {en}", f"{phrase.de} {de}", phrase.gender, phrase.pronoun)
        return phrase

    def _attached(self, *, is_person: bool) -> tuple[str, str]:
        """What follows a noun: where it is, what it has, or whom it is from."""
        if is_person or self.chance(0.3):
            held = self.thing("dat", 0) if self.chance(0.5) else self.animal("dat", 0)
            return f"with {held.en}", f"mit {held.de}"
        if self.chance(0.5):
            giver = self.person("dat", 0)
            return f"from {giver.en}", contracted("von", giver.de)
        return self.where("dat")

    def _relative_clause(self, head: Phrase, *, is_person: bool) -> tuple[str, str]:
        """A clause whose pronoun has the gender of its head and the case of its own verb."""
        if is_person:
            return self.rng.choice((self._who, self._whom))(head)
        return self.rng.choice((self._that_is, self._that))(head)

    def _who(self, head: Phrase) -> tuple[str, str]:
        if self.chance(0.5):
            verb, other = self.rng.choice(VERBS["of_a_thing"]), self.thing("acc", 0)
        else:
            verb, other = self.rng.choice(VERBS["with_dative"]), self.person("dat", 0)
        does = conjugate(self.rng, verb, plural=head.is_plural)
        relative = RELATIVE["nom", head.gender]
        return f"who {does.en} {other.en}", f"{relative} {other.de} {does.final}"

    def _whom(self, head: Phrase) -> tuple[str, str]:
        if self.chance(0.5):
            return self._seen(head, "whom", self.rng.choice(VERBS["with_dative"]), "dat")
        return self._seen(head, "whom", self.rng.choice(VERBS["of_a_person"]), "acc")

    def _that(self, head: Phrase) -> tuple[str, str]:
        return self._seen(head, "that", self.rng.choice(VERBS["of_anything"]), "acc")

    def _seen(self, head: Phrase, english: str, verb: Verb, case: str) -> tuple[str, str]:
        """The head is the object of its clause."""
        someone = self.person("nom", 0)
        does = conjugate(self.rng, verb, plural=someone.is_plural)
        relative = RELATIVE[case, head.gender]
        return f"{english} {someone.en} {does.en}", f"{relative} {someone.de} {does.final}"

    def _that_is(self, head: Phrase) -> tuple[str, str]:
        english, german = ("are", "sind") if head.is_plural else ("is", "ist")
        en, de = self.where("dat")
        return f"that {english} {en}", f"{RELATIVE['nom', head.gender]} {de} {german}"
