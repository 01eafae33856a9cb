"""German inflection: how articles, adjectives and nouns agree in case, gender and number.

Cases are nom, acc, dat, gen; genders m, f, n and p for every plural.
"""

from dataclasses import dataclass

CASES = ("nom", "acc", "dat", "gen")
GENDERS = "mfnp"


def _table(rows: str) -> dict[tuple[str, str], str]:
    """Four lines, one a case, of four endings, one a gender; `-` is no ending."""
    lines = [line.split() for line in rows.strip().splitlines()]
    return {
        (case, gender): ending.replace("-", "")
        for case, line in zip(CASES, lines, strict=True)
        for gender, ending in zip(GENDERS, line, strict=True)
    }


ARTICLE = _table("""
    der die das die
    den die das die
    dem der dem den
    des der des der
""")
RELATIVE = ARTICLE | {("dat", "p"): "denen"}
PERSONAL = _table("""
    er  sie es  sie
    ihn sie es  sie
    ihm ihr ihm ihnen
    -   -   -   -
""")

_LIKE_DER = _table("""
    er e  es e
    en e  es e
    em er em en
    es er es er
""")
_LIKE_EIN = _table("""
    -  e  -  e
    en e  -  e
    em er em en
    es er es er
""")
_AFTER_DER = _table("""
    e  e  e  en
    en e  e  en
    en en en en
    en en en en
""")
_AFTER_EIN = _table("""
    er e  es en
    en e  es en
    en en en en
    en en en en
""")
_ALONE = _table("""
    er e  es e
    en e  es e
    em er em en
    en er en er
""")

DER_WORDS = {"the": "d", "this": "dies", "these": "dies", "every": "jed"}
EIN_WORDS = {"a": "ein", "no": "kein", "my": "mein"}


def determiner(english: str, case: str, gender: str) -> str:
    """The German for an English determiner, agreeing with its noun."""
    if english == "the":
        return ARTICLE[case, gender]
    if english in EIN_WORDS:
        return EIN_WORDS[english] + _LIKE_EIN[case, gender]
    return DER_WORDS[english] + _LIKE_DER[case, gender]


def adjective(stem: str, after: str, case: str, gender: str) -> str:
    """An adjective's stem with the ending that the determiner before it asks for; "" is none."""
    endings = _AFTER_EIN if after in EIN_WORDS else _AFTER_DER if after in DER_WORDS else _ALONE
    return stem + endings[case, gender]


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
        if case == "gen" or (self.weak and case != "nom"):
            return self.genitive
        return self.nominative

    def plural_form(self, case: str) -> str:
        """The German plural; the dative adds an n unless the word ends in n or s."""
        return self.plural + "n" * (case == "dat" and self.plural[-1] not in "ns")


_CONTRACTED = {"in dem": "im", "in das": "ins", "von dem": "vom"}


def contracted(preposition: str, phrase: str) -> str:
    """Preposition and phrase as they are said: in dem Garten is im Garten."""
    article, _, rest = phrase.partition(" ")
    together = f"{preposition} {article}"
    return f"{_CONTRACTED.get(together, together)} {rest}"


_UNITS = ("", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun")
_TENS = ("zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")


def number_word(number: int) -> str:
    """2 to 9 and 20 to 99 in words, the unit before the ten."""
    if number < 10:
        return _UNITS[number]
    unit, ten = _UNITS[number % 10], _TENS[number // 10 - 2]
    return f"{unit}und{ten}" if unit else ten
