"""The nouns and adjectives of grammar-ende: English beside German, written for this project.

A noun's line: English, its plural, gender, then German nominative, genitive and plural.
Gender w is a masculine whose every other form is like its genitive.
"""

from dataclasses import dataclass
from random import Random

from synthesizer.corpora.german import Noun


def _noun(line: str) -> Noun:
    english, plural, gender, *german = line.split()
    return Noun(english, plural, gender.replace("w", "m"), *german, weak=gender == "w")


def _nouns(lines: str) -> list[Noun]:
    return [_noun(line) for line in lines.strip().splitlines()]


PERSONS = _nouns("""
    teacher teachers m Lehrer Lehrers Lehrer
    baker bakers m Bäcker Bäckers Bäcker
    doctor doctors m Arzt Arztes Ärzte
    king kings m König Königs Könige
    man men m Mann Mannes Männer
    brother brothers m Bruder Bruders Brüder
    uncle uncles m Onkel Onkels Onkel
    judge judges m Richter Richters Richter
    thief thieves m Dieb Diebes Diebe
    guest guests m Gast Gastes Gäste
    farmer farmers w Bauer Bauern Bauern
    boy boys w Junge Jungen Jungen
    student students w Student Studenten Studenten
    neighbour neighbours w Nachbar Nachbarn Nachbarn
    pilot pilots w Pilot Piloten Piloten
    woman women f Frau Frau Frauen
    daughter daughters f Tochter Tochter Töchter
    sister sisters f Schwester Schwester Schwestern
    aunt aunts f Tante Tante Tanten
    queen queens f Königin Königin Königinnen
    nurse nurses f Krankenschwester Krankenschwester Krankenschwestern
    grandmother grandmothers f Großmutter Großmutter Großmütter
    singer singers f Sängerin Sängerin Sängerinnen
    dancer dancers f Tänzerin Tänzerin Tänzerinnen
    witch witches f Hexe Hexe Hexen
    widow widows f Witwe Witwe Witwen
    child children n Kind Kindes Kinder
    baby babies n Baby Babys Babys
""")

ANIMALS = _nouns("""
    dog dogs m Hund Hundes Hunde
    bird birds m Vogel Vogels Vögel
    donkey donkeys m Esel Esels Esel
    wolf wolves m Wolf Wolfes Wölfe
    bear bears w Bär Bären Bären
    lion lions w Löwe Löwen Löwen
    monkey monkeys w Affe Affen Affen
    cat cats f Katze Katze Katzen
    cow cows f Kuh Kuh Kühe
    goat goats f Ziege Ziege Ziegen
    duck ducks f Ente Ente Enten
    snake snakes f Schlange Schlange Schlangen
    horse horses n Pferd Pferdes Pferde
    pig pigs n Schwein Schweins Schweine
    camel camels n Kamel Kamels Kamele
    chicken chickens n Huhn Huhns Hühner
""")

LYING = _nouns("""
    coat coats m Mantel Mantels Mäntel
    hat hats m Hut Hutes Hüte
    spoon spoons m Löffel Löffels Löffel
    scarf scarves m Schal Schals Schals
    belt belts m Gürtel Gürtels Gürtel
    newspaper newspapers f Zeitung Zeitung Zeitungen
    fork forks f Gabel Gabel Gabeln
    blanket blankets f Decke Decke Decken
    coin coins f Münze Münze Münzen
    jacket jackets f Jacke Jacke Jacken
    book books n Buch Buches Bücher
    knife knives n Messer Messers Messer
    shirt shirts n Hemd Hemdes Hemden
    photo photos n Foto Fotos Fotos
    sword swords n Schwert Schwertes Schwerter
""")

STANDING = _nouns("""
    bucket buckets m Eimer Eimers Eimer
    pot pots m Topf Topfes Töpfe
    mirror mirrors m Spiegel Spiegels Spiegel
    basket baskets m Korb Korbes Körbe
    stove stoves m Herd Herdes Herde
    bottle bottles f Flasche Flasche Flaschen
    vase vases f Vase Vase Vasen
    lamp lamps f Lampe Lampe Lampen
    clock clocks f Uhr Uhr Uhren
    cup cups f Tasse Tasse Tassen
    radio radios n Radio Radios Radios
    barrel barrels n Fass Fasses Fässer
    bicycle bicycles n Fahrrad Fahrrads Fahrräder
""")

SURFACES = _nouns("""
    table tables m Tisch Tisches Tische
    chair chairs m Stuhl Stuhls Stühle
    carpet carpets m Teppich Teppichs Teppiche
    cupboard cupboards m Schrank Schranks Schränke
    stage stages f Bühne Bühne Bühnen
    box boxes f Kiste Kiste Kisten
    bed beds n Bett Bettes Betten
    shelf shelves n Regal Regals Regale
    sofa sofas n Sofa Sofas Sofas
""")

PLACES = _nouns("""
    garden gardens m Garten Gartens Gärten
    tower towers m Turm Turmes Türme
    station stations m Bahnhof Bahnhofs Bahnhöfe
    cellar cellars m Keller Kellers Keller
    park parks m Park Parks Parks
    hall halls m Saal Saals Säle
    church churches f Kirche Kirche Kirchen
    school schools f Schule Schule Schulen
    kitchen kitchens f Küche Küche Küchen
    mill mills f Mühle Mühle Mühlen
    barn barns f Scheune Scheune Scheunen
    library libraries f Bibliothek Bibliothek Bibliotheken
    house houses n Haus Hauses Häuser
    village villages n Dorf Dorfes Dörfer
    hotel hotels n Hotel Hotels Hotels
    museum museums n Museum Museums Museen
    theatre theatres n Theater Theaters Theater
    tent tents n Zelt Zeltes Zelte
""")

STUFF = _nouns("""
    wine - m Wein Weins -
    tea - m Tee Tees -
    honey - m Honig Honigs -
    coffee - m Kaffee Kaffees -
    milk - f Milch Milch -
    soup - f Suppe Suppe -
    butter - f Butter Butter -
    water - n Wasser Wassers -
    bread - n Brot Brotes -
    beer - n Bier Biers -
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
    composer composers w Komponist Komponisten Komponisten
    detective detectives m Detektiv Detektivs Detektive
    diver divers m Taucher Tauchers Taucher
    engineer engineers m Ingenieur Ingenieurs Ingenieure
    fireman firemen m Feuerwehrmann Feuerwehrmannes Feuerwehrmänner
    fisherman fishermen m Fischer Fischers Fischer
    gardener gardeners m Gärtner Gärtners Gärtner
    groom grooms m Bräutigam Bräutigams Bräutigame
    headmaster headmasters m Rektor Rektors Rektoren
    lawyer lawyers m Anwalt Anwalts Anwälte
    locksmith locksmiths m Schlosser Schlossers Schlosser
    monk monks m Mönch Mönchs Mönche
    notary notaries m Notar Notars Notare
    pianist pianists f Pianistin Pianistin Pianistinnen
    pirate pirates w Pirat Piraten Piraten
    plumber plumbers m Klempner Klempners Klempner
    priest priests m Priester Priesters Priester
    sailor sailors w Matrose Matrosen Matrosen
    schoolgirl schoolgirls f Schülerin Schülerin Schülerinnen
    seamstress seamstresses f Näherin Näherin Näherinnen
    secretary secretaries f Sekretärin Sekretärin Sekretärinnen
    smoker smokers m Raucher Rauchers Raucher
    surgeon surgeons w Chirurg Chirurgen Chirurgen
    tailor tailors m Schneider Schneiders Schneider
    vampire vampires m Vampir Vampirs Vampire
    violinist violinists f Geigerin Geigerin Geigerinnen
    waiter waiters m Kellner Kellners Kellner
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
    match matches n Streichholz Streichholzes Streichhölzer : smoker fireman
    match matches f Partie Partie Partien : coach athlete
    bow bows m Bogen Bogens Bögen : archer violinist
    bow bows f Schleife Schleife Schleifen : bride seamstress
    plant plants f Pflanze Pflanze Pflanzen : gardener biologist
    plant plants n Werk Werks Werke : engineer worker
    seal seals n Siegel Siegels Siegel : notary monk
    seal seals f Robbe Robbe Robben : diver sailor
    court courts n Gericht Gerichts Gerichte : lawyer witness
    court courts m Platz Platzes Plätze : coach athlete
    chest chests f Truhe Truhe Truhen : pirate monk
    chest chests m Brustkorb Brustkorbs Brustkörbe : surgeon athlete
    lock locks n Schloss Schlosses Schlösser : locksmith burglar
    lock locks f Schleuse Schleuse Schleusen : captain sailor
    pen pens m Stift Stiftes Stifte : secretary notary
    pen pens n Gehege Geheges Gehege : zookeeper biologist
    note notes f Note Note Noten : pianist violinist
    note notes m Zettel Zettels Zettel : secretary detective
    record records f Schallplatte Schallplatte Schallplatten : pianist composer
    record records m Rekord Rekords Rekorde : coach athlete
    board boards n Brett Brettes Bretter : carpenter worker
    board boards f Tafel Tafel Tafeln : schoolgirl headmaster
    suit suits m Anzug Anzugs Anzüge : tailor groom
    suit suits f Klage Klage Klagen : lawyer witness
    pipe pipes n Rohr Rohrs Rohre : plumber engineer
    pipe pipes f Pfeife Pfeife Pfeifen : smoker captain
    bill bills f Rechnung Rechnung Rechnungen : waiter plumber
    bill bills m Schnabel Schnabels Schnäbel : zookeeper biologist
    organ organs f Orgel Orgel Orgeln : priest composer
    organ organs n Organ Organs Organe : surgeon biologist
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
