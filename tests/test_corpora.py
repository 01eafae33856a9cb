import hashlib
import json
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from synthesizer_attention.data import corpora, grammar
from synthesizer_attention.data.corpora import (
    CORPORA,
    DRAW,
    GRADED,
    cut_sections,
    draw_splits,
    listops,
    python_docs,
)
from synthesizer_attention.data.sources import open_source
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe_keys import Data

SMALL = {"train": 60, "validation": 20, "test": 20}
COLUMNS = {
    "python-docs": ["text"],
    "grammar-ende": ["en", "de"],
    "listops": ["Source", "Target"],
    "listops-short": ["Source", "Target"],
    "shift": ["input", "target"],
    "recall": ["input", "target"],
    **{name: ["input", "target"] for name in GRADED},
}

every_corpus = pytest.mark.parametrize("name", CORPORA)
every_drawn_corpus = pytest.mark.parametrize("name", [n for n in CORPORA if n != "python-docs"])


@pytest.fixture(scope="module")
def made():
    return {name: small(name) for name in CORPORA}


def small(name, **options):
    sizes = {} if name == "python-docs" else SMALL
    return CORPORA[name](**sizes, **options)


@every_corpus
def test_a_corpus_has_three_splits_of_named_columns_and_no_row_twice(name, made):
    assert list(made[name]) == ["train", "validation", "test"]
    for rows in made[name].values():
        assert rows
        assert all(list(row) == COLUMNS[name] and all(row.values()) for row in rows)
    sources = [row[COLUMNS[name][0]] for rows in made[name].values() for row in rows]
    assert len(sources) == len(set(sources))


@every_drawn_corpus
def test_the_seed_alone_decides_the_rows_and_a_longer_train_split_adds_to_it(name, made):
    longer = CORPORA[name](DRAW, **SMALL | {"train": 61})
    assert longer["validation"] == made[name]["validation"]
    assert longer["test"] == made[name]["test"]
    assert longer["train"][:60] == made[name]["train"]
    assert small(name, seed=0) != made[name], "draw 0 is that of older records"


def test_a_corpus_that_runs_out_of_rows_says_so():
    with pytest.raises(UserError, match="ran out after 2 distinct rows; ask for smaller splits"):
        draw_splits(lambda rng: {"x": rng.choice("ab")}, "x", 0, SMALL)


def test_the_corpora_load_without_torch():
    check = "import sys, synthesizer_attention.data.corpora; sys.exit('torch' in sys.modules)"
    subprocess.run(
        [sys.executable, "-c", check], env={"PYTHONPATH": ":".join(sys.path)}, check=True
    )


def test_python_docs_is_a_megabyte_of_english_and_holds_out_hundreds_of_documents(made):
    texts = {split: [row["text"] for row in rows] for split, rows in made["python-docs"].items()}
    every = [text for part in texts.values() for text in part]
    assert not any(text.startswith((" ", "\n")) for text in every)
    words = Counter(word for text in every for word in text.split())
    assert words.most_common(1)[0][0] == "the"
    size = {split: sum(map(len, part)) for split, part in texts.items()}
    assert sum(size.values()) > 1_300_000
    assert size["train"] > 5 * (size["validation"] + size["test"])
    assert min(size["validation"], size["test"]) > 50_000
    sizes = np.array([*map(len, texts["test"])])
    assert len(sizes) > 300
    assert sizes.max() < 0.1 * sizes.sum(), "no document dominates"
    assert sizes.sum() ** 2 / (sizes**2).sum() > 60


def test_a_topic_is_cut_at_the_margin_and_loses_nothing():
    text = "\n\n".join(["x" * 999, "   y" * 100, "z", "w"])
    first, second = cut_sections(text)
    assert f"{first}\n\n{second}" == text
    assert second == "z\n\nw"


def test_python_docs_says_what_a_python_lacks(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(corpora.sysconfig, "get_path", lambda name: str(tmp_path))
        with pytest.raises(UserError, match=r"has no \.py files; python-docs is made from"):
            python_docs()
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(UserError, match=r"this Python has no help topics \(pydoc_data\.topics\)"):
        python_docs()


def value_of(source):
    """ListOps by rewriting innermost lists, so nothing is shared with the generator."""
    rules = {
        "MIN": lambda digits: digits[0],
        "MAX": lambda digits: digits[-1],
        "MED": lambda digits: int((digits[(len(digits) - 1) // 2] + digits[len(digits) // 2]) / 2),
        "SM": lambda digits: sum(digits) % 10,
    }
    stack = []
    for token in source.split():
        if token != "]":
            stack.append(token)
            continue
        opening = max(place for place, kept in enumerate(stack) if kept.startswith("["))
        digits = sorted(map(int, stack[opening + 1 :]))
        stack[opening:] = [str(rules[stack[opening][1:]](digits))]
    return stack


@pytest.mark.parametrize(
    ("name", "low", "high", "operators"), [("listops", 500, 2000, 1), ("listops-short", 10, 60, 2)]
)
def test_an_independent_evaluator_agrees_with_every_list_within_its_limits(
    name, low, high, operators, made
):
    rows = [row for split in made[name].values() for row in split]
    assert all(value_of(row["Source"]) == [row["Target"]] for row in rows)
    lists = [row["Source"].split() for row in rows]
    assert all(low < len(tokens) < high for tokens in lists)
    assert len({token for tokens in lists for token in tokens}) == 15
    assert all(row["Source"].count("[") >= operators for row in rows)


def test_no_list_is_deeper_than_asked():
    rows = listops(train=200, validation=1, test=1, longer_than=4, max_depth=3)["train"]
    deepest = 0
    for row in rows:
        depth = 0
        for token in row["Source"].split():
            depth += token.startswith("[") - (token == "]")
            deepest = max(deepest, depth)
    assert deepest == 2, "the third level is digits"


def test_shift_asks_for_the_token_three_back(made):
    for row in made["shift"]["test"]:
        tokens, target = row["input"].split(), row["target"].split()
        assert target == ["_"] * 3 + tokens[:-3]


def test_recall_asks_for_the_value_bound_to_the_key(made):
    for row in made["recall"]["test"]:
        tokens, target = row["input"].split(), row["target"].split()
        bound = dict(re.fullmatch(r"([a-z])(\d+)", token).groups() for token in tokens[:12])
        assert len(bound) == 12
        assert target == ["_"] * 12 + [bound[key] for key in tokens[12:]]


@pytest.mark.parametrize("pairs", [2, 16])
def test_multi_query_recall_asks_for_the_value_behind_the_key(pairs):
    for row in small("multi-query-recall", difficulty=pairs)["test"]:
        given, asked = (part.split() for part in row["input"].split(" | "))
        value = dict(zip(given[::2], given[1::2], strict=True))
        assert len(value) == pairs
        assert row["target"].split() == ["_"] * (2 * pairs + 1) + [value[key] for key in asked]


@pytest.mark.parametrize("noise", [1, 24])
def test_noisy_recall_strews_noise_among_the_pairs(noise):
    rows = small("noisy-recall", difficulty=noise)["test"]
    for row in rows:
        given, asked = (part.split() for part in row["input"].split(" | "))
        bound = [re.fullmatch(r"([a-z])(\d+)", token) for token in given]
        value = dict(found.groups() for found in bound if found)
        assert len(value) == 8
        assert len(given) == 8 + noise
        assert row["target"].split()[len(given) + 1 :] == [value[key] for key in asked]
    assert len({row["input"].index("~") for row in rows}) > 1


@pytest.mark.parametrize("noise", [1, 16])
def test_selective_copying_asks_for_the_letters_in_order(noise):
    rows = small("selective-copying", difficulty=noise)["test"]
    for row in rows:
        tokens, target = row["input"].split(), row["target"].split()
        assert tokens.count(".") == noise
        assert [t for t in target if t != "_"] == [t for t in tokens if t not in (".", ">")]
    assert len({row["input"].index(".") for row in rows}) > 1


@pytest.mark.parametrize("distances", [1, 12])
def test_distance_copying_asks_for_the_letter_that_a_token_names(distances):
    for row in small("distance-copying", difficulty=distances)["test"]:
        tokens, target = row["input"].split(), row["target"].split()
        for place, (token, wanted) in enumerate(zip(tokens, target, strict=True)):
            letter, back = token[0], int(token[1:])
            assert letter.isalpha()
            assert 1 <= back <= distances
            assert wanted == (tokens[place - back][0] if back <= place else "_")


def test_a_difficulty_that_a_probe_cannot_have_is_refused():
    with pytest.raises(UserError, match=r"data.difficulty is 27; it is the number of keys here"):
        small("multi-query-recall", difficulty=27)
    with pytest.raises(UserError, match=r"number of distances here: choose 1 to 31"):
        small("distance-copying", difficulty=32)
    with pytest.raises(UserError, match=r"data.difficulty is 3, and 'recall' has none; drop it"):
        open_source(Data(builtin="recall", difficulty=3), None)


def test_every_difficulty_is_data_of_its_own_and_is_named_with_its_draw():
    easy, hard = (open_source(Data(builtin=GRADED[0], difficulty=n), None) for n in (2, 3))
    assert easy.origin == "built-in multi-query-recall, draw 1, difficulty 2"
    assert easy.fingerprint != hard.fingerprint
    assert open_source(Data(builtin="python-docs"), None).origin == "built-in python-docs"


@pytest.fixture(scope="module")
def sentences():
    return corpora.grammar_ende(train=3_000)


@pytest.fixture(scope="module")
def rows(sentences):
    return sentences["train"]


def digests(sentences):
    return {
        split: hashlib.sha256(json.dumps(made, ensure_ascii=False).encode()).hexdigest()[:16]
        for split, made in sentences.items()
    }


def test_the_sentences_of_both_draws_are_those_that_records_were_measured_on(sentences):
    """The whole train split begins with these 3,000; draw 0 is that of older records."""
    assert digests(sentences) == {
        "train": "1b12975265bcecd7",
        "validation": "e9783f8aabff3601",
        "test": "d40353711a0236df",
    }
    assert digests(corpora.grammar_ende(0, train=3_000)) == {
        "train": "a6f097537be00fac",
        "validation": "ab264b23b1da59d6",
        "test": "516371ec3d6d7e11",
    }


@pytest.mark.parametrize(
    ("before", "name", "said"),
    [
        ("the", "Mann", "der alte Mann, den alten Mann, dem alten Mann, des alten Mannes"),
        ("a", "Mann", "ein alter Mann, einen alten Mann, einem alten Mann, eines alten Mannes"),
        ("my", "Frau", "meine alte Frau, meine alte Frau, meiner alten Frau, meiner alten Frau"),
        ("a", "Haus", "ein altes Haus, ein altes Haus, einem alten Haus, eines alten Hauses"),
        ("this", "Bauer",
         "dieser alte Bauer, diesen alten Bauern, diesem alten Bauern, dieses alten Bauern"),
    ],
)  # fmt: skip
def test_article_adjective_and_noun_agree(before, name, said):
    nouns = grammar.NOUNS["persons"] + grammar.NOUNS["places"]
    (noun, *_) = [noun for noun in nouns if noun.nominative == name]
    made = [
        f"{grammar.determiner(before, case, noun.gender)} "
        f"{grammar.adjective('alt', before, case, noun.gender)} {noun.singular(case)}"
        for case in ("nom", "acc", "dat", "gen")
    ]
    assert ", ".join(made) == said


def test_numbers_and_prepositions_are_said_as_in_german():
    assert grammar.number_words(7) == ("seven", "sieben")
    assert grammar.number_words(20) == ("twenty", "zwanzig")
    assert grammar.number_words(36) == ("thirty-six", "sechsunddreißig")
    assert grammar.contracted("in", "dem alten Garten") == "im alten Garten"
    assert grammar.contracted("in", "der Schule") == "in der Schule"


def finite_forms():
    verbs = [verb for kind in grammar.VERBS.values() for verb in kind]
    modals = {form for modal in grammar.MODALS for form in modal[2:]}
    plain = {verb.prefix + verb.german[0] for verb in verbs} | {verb.german[1] for verb in verbs}
    return plain | modals | {"hat", "haben", "ist", "sind", "war"}


def test_a_subordinate_clause_ends_in_its_finite_verb(rows):
    clause = re.compile(r"\b(?:weil|obwohl|da) [^,.]* (\w+)(?:\.|, (?!d))")
    last = [word for row in rows for word in clause.findall(row["de"])]
    assert len(last) > 200
    assert set(last) <= finite_forms()


def test_the_conjunction_says_which_clause_comes_first_in_german(rows):
    orders = set()
    for conjunction in grammar.CONJUNCTIONS:
        said = [row for row in rows if re.search(rf"\b{conjunction.english}\b", row["en"].lower())]
        opening = [row for row in said if row["en"].lower().startswith(conjunction.english)]
        assert 0.3 < len(opening) / len(said) < 0.7
        german = {conjunction.german, conjunction.of_the_past or conjunction.german}
        orders |= {(conjunction.opens, row["de"].split()[0].lower() in german) for row in said}
    assert orders == {(True, True), (False, False)}


def test_someone_in_the_sentence_gives_an_ambiguous_noun_away(rows):
    seen = set()
    for row in rows:
        english = set(re.findall(r"\w+", row["en"]))
        german = set(re.findall(r"\w+", row["de"]))
        for senses in grammar.AMBIGUOUS:
            noun = senses[0].noun
            if not english & {noun.english, noun.english_plural}:
                continue
            meant = [sense for sense in senses if any_form(sense.noun) & german]
            hinted = [s for s in senses if any(any_form(cue) & german for cue in s.cues)]
            assert meant == hinted
            assert len(meant) == 1
            seen.add(meant[0].noun.nominative)
    assert len(seen) == sum(map(len, grammar.AMBIGUOUS))


def any_form(noun):
    cases = ("nom", "acc", "dat", "gen")
    return {form(case) for case in cases for form in (noun.singular, noun.plural_form)}


def test_sentences_are_written_as_people_write_them(rows):
    for row in rows:
        for text in row.values():
            assert re.fullmatch(r"[A-ZÄÖÜ][^.]*[^,.\s]\.", text)
            assert not re.search(r" [,.]|,,|  |\ba [aeiou]", text)
