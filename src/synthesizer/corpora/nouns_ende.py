"""The nouns and adjectives of grammar-ende: English beside German, written for this project.

A noun's line: English, its plural, gender, then German nominative, genitive and plural.
Gender w is a masculine whose every other form is like its genitive.
"""

from dataclasses import dataclass
from random import Random

from synthesizer.corpora.german import Noun


def _noun(line: str) -> Noun:
    english, plural, gender, nominative, genitive, german = line.split()
    gender, weak = gender.replace("w", "m"), gender == "w"
    return Noun(english, plural, gender, nominative, genitive, german, weak)


def _nouns(lines: str) -> list[Noun]:
    return [_noun(line) for line in lines.strip().splitlines()]


PERSONS = _nouns("""
    teacher teachers m Lehrer Lehrers Lehrer
    baker bakers m Bäcker Bäckers Bäcker
    doctor doctors m Arzt Arztes Ärzte
    king kings m König Königs Könige
    man men m Mann Mannes Männer
    brother brothers m Bruder Bruders Brüder
    thief thieves m Dieb Diebes Diebe
    farmer farmers w Bauer Bauern Bauern
    boy boys w Junge Jungen Jungen
    student students w Student Studenten Studenten
    neighbour neighbours w Nachbar Nachbarn Nachbarn
    woman women f Frau Frau Frauen
    daughter daughters f Tochter Tochter Töchter
    sister sisters f Schwester Schwester Schwestern
    queen queens f Königin Königin Königinnen
    grandmother grandmothers f Großmutter Großmutter Großmütter
    singer singers f Sängerin Sängerin Sängerinnen
    dancer dancers f Tänzerin Tänzerin Tänzerinnen
    witch witches f Hexe Hexe Hexen
""")

ANIMALS = _nouns("""
    dog dogs m Hund Hundes Hunde
    bird birds m Vogel Vogels Vögel
    wolf wolves m Wolf Wolfes Wölfe
    bear bears w Bär Bären Bären
    lion lions w Löwe Löwen Löwen
    cat cats f Katze Katze Katzen
    cow cows f Kuh Kuh Kühe
    horse horses n Pferd Pferdes Pferde
    camel camels n Kamel Kamels Kamele
    chicken chickens n Huhn Huhns Hühner
""")

LYING = _nouns("""
    coat coats m Mantel Mantels Mäntel
    hat hats m Hut Hutes Hüte
    spoon spoons m Löffel Löffels Löffel
    newspaper newspapers f Zeitung Zeitung Zeitungen
    blanket blankets f Decke Decke Decken
    coin coins f Münze Münze Münzen
    book books n Buch Buches Bücher
    knife knives n Messer Messers Messer
    shirt shirts n Hemd Hemdes Hemden
    photo photos n Foto Fotos Fotos
""")

STANDING = _nouns("""
    bucket buckets m Eimer Eimers Eimer
    pot pots m Topf Topfes Töpfe
    mirror mirrors m Spiegel Spiegels Spiegel
    bottle bottles f Flasche Flasche Flaschen
    vase vases f Vase Vase Vasen
    lamp lamps f Lampe Lampe Lampen
    clock clocks f Uhr Uhr Uhren
    radio radios n Radio Radios Radios
    bicycle bicycles n Fahrrad Fahrrads Fahrräder
""")

SURFACES = _nouns("""
    table tables m Tisch Tisches Tische
    chair chairs m Stuhl Stuhls Stühle
    carpet carpets m Teppich Teppichs Teppiche
    box boxes f Kiste Kiste Kisten
    bed beds n Bett Bettes Betten
    shelf shelves n Regal Regals Regale
    sofa sofas n Sofa Sofas Sofas
""")

PLACES = _nouns("""
    garden gardens m Garten Gartens Gärten
    station stations m Bahnhof Bahnhofs Bahnhöfe
    park parks m Park Parks Parks
    church churches f Kirche Kirche Kirchen
    school schools f Schule Schule Schulen
    kitchen kitchens f Küche Küche Küchen
    barn barns f Scheune Scheune Scheunen
    house houses n Haus Hauses Häuser
    village villages n Dorf Dorfes Dörfer
    hotel hotels n Hotel Hotels Hotels
    museum museums n Museum Museums Museen
    theatre theatres n Theater Theaters Theater
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
    athlete athletes f Sportlerin Sportlerin Sportlerinnen
    banker bankers m Bankier Bankiers Bankiers
    biologist biologists f Biologin Biologin Biologinnen
    bride brides f Braut Braut Bräute
    burglar burglars m Einbrecher Einbrechers Einbrecher
    captain captains m Kapitän Kapitäns Kapitäne
    carpenter carpenters m Tischler Tischlers Tischler
    cashier cashiers f Kassiererin Kassiererin Kassiererinnen
    coach coaches m Trainer Trainers Trainer
    engineer engineers m Ingenieur Ingenieurs Ingenieure
    fisherman fishermen m Fischer Fischers Fischer
    gardener gardeners m Gärtner Gärtners Gärtner
    groom grooms m Bräutigam Bräutigams Bräutigame
    headmaster headmasters m Rektor Rektors Rektoren
    lawyer lawyers m Anwalt Anwalts Anwälte
    locksmith locksmiths m Schlosser Schlossers Schlosser
    notary notaries m Notar Notars Notare
    pianist pianists f Pianistin Pianistin Pianistinnen
    plumber plumbers m Klempner Klempners Klempner
    sailor sailors w Matrose Matrosen Matrosen
    schoolgirl schoolgirls f Schülerin Schülerin Schülerinnen
    seamstress seamstresses f Näherin Näherin Näherinnen
    secretary secretaries f Sekretärin Sekretärin Sekretärinnen
    smoker smokers m Raucher Rauchers Raucher
    tailor tailors m Schneider Schneiders Schneider
    vampire vampires m Vampir Vampirs Vampire
    violinist violinists f Geigerin Geigerin Geigerinnen
    witness witnesses w Zeuge Zeugen Zeugen
    worker workers m Arbeiter Arbeiters Arbeiter
    zookeeper zookeepers m Tierpfleger Tierpflegers Tierpfleger
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
    bat bats f Fledermaus Fledermaus Fledermäuse : vampire biologist
    bat bats m Schläger Schlägers Schläger : coach athlete
    bow bows m Bogen Bogens Bögen : archer violinist
    bow bows f Schleife Schleife Schleifen : bride seamstress
    plant plants f Pflanze Pflanze Pflanzen : gardener biologist
    plant plants n Werk Werks Werke : engineer worker
    lock locks n Schloss Schlosses Schlösser : locksmith burglar
    lock locks f Schleuse Schleuse Schleusen : captain sailor
    pen pens m Stift Stiftes Stifte : secretary notary
    pen pens n Gehege Geheges Gehege : zookeeper biologist
    board boards n Brett Brettes Bretter : carpenter worker
    board boards f Tafel Tafel Tafeln : schoolgirl headmaster
    suit suits m Anzug Anzugs Anzüge : tailor groom
    suit suits f Klage Klage Klagen : lawyer witness
    pipe pipes n Rohr Rohrs Rohre : plumber engineer
    pipe pipes f Pfeife Pfeife Pfeifen : smoker captain
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
