"""The verbs, adverbs and conjunctions of grammar-ende: English beside German.

A verb's line: English third person, base, past and perhaps a particle; then German third person,
infinitive and participle. A bar parts a separable prefix: auf|hebt. A star asks for sein.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Verb:
    """An English verb and its German, which may split: auf|hebt says hebt ... auf."""

    english: tuple[str, str, str]
    german: tuple[str, str, str]
    prefix: str
    auxiliary: str


def _verbs(lines: str) -> list[Verb]:
    return [_verb(line) for line in lines.strip().splitlines()]


def _verb(line: str) -> Verb:
    english, german = (side.split() for side in line.split(":"))
    third, base, past = (" ".join([word, *english[3:]]) for word in english[:3])
    prefix, _, finite = german[0].rpartition("|")
    participle = german[2].removesuffix("*")
    auxiliary = "sein" if german[2].endswith("*") else "haben"
    return Verb((third, base, past), (finite, german[1], participle), prefix, auxiliary)


OF_ANYTHING = _verbs("""
    sees see saw : sieht sehen gesehen
    finds find found : findet finden gefunden
    loves love loved : liebt lieben geliebt
    forgets forget forgot : vergisst vergessen vergessen
    takes take took along : mit|nimmt mitnehmen mitgenommen
""")
OF_A_PERSON = _verbs("""
    praises praise praised : lobt loben gelobt
    visits visit visited : besucht besuchen besucht
    invites invite invited : ein|lädt einladen eingeladen
    calls call called : an|ruft anrufen angerufen
""")
OF_A_THING = _verbs("""
    buys buy bought : kauft kaufen gekauft
    sells sell sold : verkauft verkaufen verkauft
    steals steal stole : stiehlt stehlen gestohlen
    cleans clean cleaned : putzt putzen geputzt
    picks pick picked up : auf|hebt aufheben aufgehoben
    throws throw threw away : weg|wirft wegwerfen weggeworfen
""")
WITH_DATIVE = _verbs("""
    helps help helped : hilft helfen geholfen
    thanks thank thanked : dankt danken gedankt
    follows follow followed : folgt folgen gefolgt*
    listens listen listened to : zu|hört zuhören zugehört
""")
GIVING = _verbs("""
    gives give gave : gibt geben gegeben
    shows show showed : zeigt zeigen gezeigt
    promises promise promised : verspricht versprechen versprochen
""")
PUTTING_DOWN = _verbs("places place placed : legt legen gelegt")
PUTTING_UP = _verbs("places place placed : stellt stellen gestellt")
MOVING_THINGS = _verbs("throws throw threw : wirft werfen geworfen")
STAYING = _verbs("""
    sleeps sleep slept : schläft schlafen geschlafen
    waits wait waited : wartet warten gewartet
    dances dance danced : tanzt tanzen getanzt
""")
GOING = _verbs("""
    goes go went : geht gehen gegangen*
    runs run ran : läuft laufen gelaufen*
""")

MODALS = [
    ("can", "can", "kann", "können"),
    ("must", "must", "muss", "müssen"),
    ("should", "should", "soll", "sollen"),
    ("may", "may", "darf", "dürfen"),
    ("wants to", "want to", "will", "wollen"),
]
ANY_TIME = [("today", "heute"), ("often", "oft"), ("secretly", "heimlich"), ("again", "wieder")]
PRESENT_TIME = [("now", "jetzt"), ("soon", "bald")]
PAST_TIME = [("yesterday", "gestern"), ("recently", "neulich")]


@dataclass(frozen=True)
class Conjunction:
    """What makes a clause subordinate; in German that clause always opens the sentence or never."""

    english: str
    german: str
    opens: bool
    of_the_past: str = ""


CONJUNCTIONS = [
    Conjunction("since", "da", opens=True),
    Conjunction("if", "falls", opens=True),
    Conjunction("as soon as", "sobald", opens=True),
    Conjunction("when", "wenn", opens=True, of_the_past="als"),
    Conjunction("because", "weil", opens=False),
    Conjunction("although", "obwohl", opens=False),
    Conjunction("while", "während", opens=False),
    Conjunction("before", "bevor", opens=False),
    Conjunction("until", "bis", opens=False),
]
