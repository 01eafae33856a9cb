"""German inflection: how articles and adjectives agree in case, gender and number."""

from synthesizer_attention.data.corpora.grammar_ende.vocabulary import ENDINGS

ARTICLE = ENDINGS["article"]
RELATIVE = ARTICLE | {("dat", "p"): "denen"}
PERSONAL = ENDINGS["personal"]
DER_WORDS = {"the": "d", "this": "dies", "these": "dies", "every": "jed"}
EIN_WORDS = {"a": "ein", "no": "kein", "my": "mein"}


def determiner(english: str, case: str, gender: str) -> str:
    """The German for an English determiner, agreeing with its noun."""
    if english == "the":
        return ARTICLE[case, gender]
    if english in EIN_WORDS:
        return EIN_WORDS[english] + ENDINGS["like_ein"][case, gender]
    return DER_WORDS[english] + ENDINGS["like_der"][case, gender]


def adjective(stem: str, after: str, case: str, gender: str) -> str:
    """An adjective's stem with the ending that the determiner before it asks for; "" is none."""
    kind = "after_ein" if after in EIN_WORDS else "after_der" if after in DER_WORDS else "alone"
    return stem + ENDINGS[kind][case, gender]


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
