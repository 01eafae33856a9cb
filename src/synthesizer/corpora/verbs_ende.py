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
    draws draw drew : zeichnet zeichnen gezeichnet
    loves love loved : liebt lieben geliebt
    needs need needed : braucht brauchen gebraucht
    forgets forget forgot : vergisst vergessen vergessen
    knows know knew : kennt kennen gekannt
    looks look looked for : sucht suchen gesucht
    looks look looked at : an|schaut anschauen angeschaut
    brings bring brought back : zurück|bringt zurückbringen zurückgebracht
    takes take took along : mit|nimmt mitnehmen mitgenommen
""")
OF_A_PERSON = _verbs("""
    praises praise praised : lobt loben gelobt
    greets greet greeted : begrüßt begrüßen begrüßt
    visits visit visited : besucht besuchen besucht
    asks ask asked : fragt fragen gefragt
    invites invite invited : ein|lädt einladen eingeladen
    calls call called : an|ruft anrufen angerufen
    laughs laugh laughed at : aus|lacht auslachen ausgelacht
""")
OF_A_THING = _verbs("""
    buys buy bought : kauft kaufen gekauft
    sells sell sold : verkauft verkaufen verkauft
    repairs repair repaired : repariert reparieren repariert
    steals steal stole : stiehlt stehlen gestohlen
    cleans clean cleaned : putzt putzen geputzt
    hides hide hid : versteckt verstecken versteckt
    picks pick picked up : auf|hebt aufheben aufgehoben
    throws throw threw away : weg|wirft wegwerfen weggeworfen
    tries try tried out : aus|probiert ausprobieren ausprobiert
""")
WITH_DATIVE = _verbs("""
    helps help helped : hilft helfen geholfen
    thanks thank thanked : dankt danken gedankt
    follows follow followed : folgt folgen gefolgt*
    trusts trust trusted : vertraut vertrauen vertraut
    answers answer answered : antwortet antworten geantwortet
    listens listen listened to : zu|hört zuhören zugehört
""")
GIVING = _verbs("""
    gives give gave : gibt geben gegeben
    shows show showed : zeigt zeigen gezeigt
    sends send sent : schickt schicken geschickt
    promises promise promised : verspricht versprechen versprochen
""")
PUTTING_DOWN = _verbs("places place placed : legt legen gelegt")
PUTTING_UP = _verbs("places place placed : stellt stellen gestellt")
MOVING_THINGS = _verbs("""
    throws throw threw : wirft werfen geworfen
    pushes push pushed : schiebt schieben geschoben
""")
STAYING = _verbs("""
    sleeps sleep slept : schläft schlafen geschlafen
    waits wait waited : wartet warten gewartet
    works work worked : arbeitet arbeiten gearbeitet
    sings sing sang : singt singen gesungen
    dances dance danced : tanzt tanzen getanzt
""")
GOING = _verbs("""
    goes go went : geht gehen gegangen*
    runs run ran : läuft laufen gelaufen*
    jumps jump jumped : springt springen gesprungen*
""")
SAYING = _verbs("""
    says say said : sagt sagen gesagt
    thinks think thought : denkt denken gedacht
    knows know knew : weiß wissen gewusst
    hopes hope hoped : hofft hoffen gehofft
    forgets forget forgot : vergisst vergessen vergessen
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
CONJUNCTIONS = [
    ("because", "weil"),
    ("although", "obwohl"),
    ("while", "während"),
    ("before", "bevor"),
    ("until", "bis"),
]
