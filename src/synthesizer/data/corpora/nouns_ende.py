"""The nouns and adjectives of grammar-ende: English beside German, written for this project.

A noun's line: English, its plural, gender, then German nominative, genitive and plural.
Gender w is a masculine whose every other form is like its genitive.
"""

from dataclasses import dataclass
from random import Random

from synthesizer.data.corpora.german import Noun


def _noun(line: str) -> Noun:
    english, plural, gender, nominative, genitive, german = line.split()
    gender, weak = gender.replace("w", "m"), gender == "w"
    return Noun(english, plural, gender, nominative, genitive, german, weak)


def _nouns(lines: str) -> list[Noun]:
    return [_noun(line) for line in lines.strip().splitlines()]


PERSONS = _nouns("""
    teacher teachers m Lehrer Lehrers Lehrer
    doctor doctors m Arzt Arztes Ärzte
    king kings m König Königs Könige
    man men m Mann Mannes Männer
    brother brothers m Bruder Bruders Brüder
    farmer farmers w Bauer Bauern Bauern
    student students w Student Studenten Studenten
    woman women f Frau Frau Frauen
    sister sisters f Schwester Schwester Schwestern
    queen queens f Königin Königin Königinnen
    singer singers f Sängerin Sängerin Sängerinnen
    witch witches f Hexe Hexe Hexen
""")

ANIMALS = _nouns("""
    dog dogs m Hund Hundes Hunde
    bird birds m Vogel Vogels Vögel
    lion lions w Löwe Löwen Löwen
    cat cats f Katze Katze Katzen
    cow cows f Kuh Kuh Kühe
    horse horses n Pferd Pferdes Pferde
""")

LYING = _nouns("""
    coat coats m Mantel Mantels Mäntel
    hat hats m Hut Hutes Hüte
    newspaper newspapers f Zeitung Zeitung Zeitungen
    blanket blankets f Decke Decke Decken
    book books n Buch Buches Bücher
    knife knives n Messer Messers Messer
    shirt shirts n Hemd Hemdes Hemden
""")

STANDING = _nouns("""
    bucket buckets m Eimer Eimers Eimer
    bottle bottles f Flasche Flasche Flaschen
    lamp lamps f Lampe Lampe Lampen
    bicycle bicycles n Fahrrad Fahrrads Fahrräder
""")

SURFACES = _nouns("""
    table tables m Tisch Tisches Tische
    chair chairs m Stuhl Stuhls Stühle
    box boxes f Kiste Kiste Kisten
    bed beds n Bett Bettes Betten
    shelf shelves n Regal Regals Regale
""")

PLACES = _nouns("""
    garden gardens m Garten Gartens Gärten
    church churches f Kirche Kirche Kirchen
    school schools f Schule Schule Schulen
    kitchen kitchens f Küche Küche Küchen
    house houses n Haus Hauses Häuser
    village villages n Dorf Dorfes Dörfer
""")

STUFF = _nouns("""
    wine - m Wein Weins -
    tea - m Tee Tees -
    milk - f Milch Milch -
    butter - f Butter Butter -
    water - n Wasser Wassers -
    bread - n Brot Brotes -
""")

CUES = _nouns("""
    archer archers w Schütze Schützen Schützen
    banker bankers m Bankier Bankiers Bankiers
    biologist biologists f Biologin Biologin Biologinnen
    bride brides f Braut Braut Bräute
    burglar burglars m Einbrecher Einbrechers Einbrecher
    captain captains m Kapitän Kapitäns Kapitäne
    carpenter carpenters m Tischler Tischlers Tischler
    cashier cashiers f Kassiererin Kassiererin Kassiererinnen
    engineer engineers m Ingenieur Ingenieurs Ingenieure
    fisherman fishermen m Fischer Fischers Fischer
    gardener gardeners m Gärtner Gärtners Gärtner
    headmaster headmasters m Rektor Rektors Rektoren
    locksmith locksmiths m Schlosser Schlossers Schlosser
    pianist pianists f Pianistin Pianistin Pianistinnen
    sailor sailors w Matrose Matrosen Matrosen
    schoolgirl schoolgirls f Schülerin Schülerin Schülerinnen
    seamstress seamstresses f Näherin Näherin Näherinnen
    worker workers m Arbeiter Arbeiters Arbeiter
""")


@dataclass(frozen=True)
class Sense:
    """One meaning of an ambiguous noun, and the people elsewhere in the sentence who mean it."""

    noun: Noun
    cues: tuple[Noun, ...]


def _senses(lines: str) -> list[list[Sense]]:
    """A list for each ambiguous English noun; the cues stand after the colon."""
    people = {cue.english: cue for cue in CUES}
    senses: dict[str, list[Sense]] = {}
    for line in lines.strip().splitlines():
        noun, cues = line.split(":")
        sense = Sense(_noun(noun), tuple(people[cue] for cue in cues.split()))
        senses.setdefault(sense.noun.english, []).append(sense)
    return list(senses.values())


AMBIGUOUS = _senses("""
    bank banks f Bank Bank Banken : banker cashier
    bank banks n Ufer Ufers Ufer : fisherman sailor
    key keys m Schlüssel Schlüssels Schlüssel : locksmith burglar
    key keys f Taste Taste Tasten : pianist
    bow bows m Bogen Bogens Bögen : archer
    bow bows f Schleife Schleife Schleifen : bride seamstress
    plant plants f Pflanze Pflanze Pflanzen : gardener biologist
    plant plants n Werk Werks Werke : engineer worker
    lock locks n Schloss Schlosses Schlösser : locksmith burglar
    lock locks f Schleuse Schleuse Schleusen : captain sailor
    board boards n Brett Brettes Bretter : carpenter worker
    board boards f Tafel Tafel Tafeln : schoolgirl headmaster
""")


@dataclass(frozen=True)
class Adjectives:
    """English beside German stems: those that stand first, and those nearer to the noun."""

    first: list[tuple[str, str]]
    second: list[tuple[str, str]]

    def two_of_each(self, rng: Random) -> "Adjectives":
        """Those that one sentence keeps to."""
        return Adjectives(rng.sample(self.first, 2), rng.sample(self.second, 2))


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = [pair.split(":") for pair in text.split()]
    return [(english, stem) for english, stem in pairs]


def _adjectives(first: str, second: str) -> Adjectives:
    return Adjectives(_pairs(first), _pairs(second))


ADJECTIVES = {
    "person": _adjectives(
        "old:alt young:jung small:klein famous:berühmt poor:arm rich:reich strange:seltsam",
        "brave:tapfer clever:klug friendly:freundlich hungry:hungrig sad:traurig lazy:faul",
    ),
    "animal": _adjectives(
        "old:alt young:jung small:klein big:groß hungry:hungrig lazy:faul strong:stark wild:wild",
        "black:schwarz white:weiß grey:grau brown:braun",
    ),
    "thing": _adjectives(
        "old:alt new:neu small:klein big:groß beautiful:schön cheap:billig expensive:teur",
        "red:rot white:weiß black:schwarz green:grün blue:blau yellow:gelb",
    ),
    "place": _adjectives(
        "old:alt new:neu small:klein big:groß beautiful:schön famous:berühmt quiet:ruhig",
        "white:weiß grey:grau yellow:gelb red:rot",
    ),
}
OF_STUFF = _pairs("cold:kalt hot:heiß warm:warm good:gut bad:schlecht fresh:frisch")
UNINFLECTED = {"teur": "teuer"}
