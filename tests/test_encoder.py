"""Texts that are encoded word by word get the numbers of the tokenizer itself."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from synthesizer_attention.data.tokenizer import (
    CLS,
    EOS,
    Encoder,
    Template,
    bare_encodings,
    encode,
    train_tokenizer,
)
from synthesizer_attention.run.recipe_keys import Text

TEXTS = ["it's the cat's 12th mat, isn't it?", "the dog sat on the cat; über Grüße 東京"] * 20
KINDS = {
    "bpe": Text(kind="bpe", vocab_size=420),
    "word": Text(kind="word", vocab_size=120),
    "byte": Text(kind="byte"),
}
TEMPLATES = (Template(), Template(opening=CLS, closing=""), Template(opening=EOS, sentinels=100))
TOKENIZERS = [
    train_tokenizer(text, [TEXTS], template) for text in KINDS.values() for template in TEMPLATES
]
PARTS = st.sampled_from(
    [
        "the",
        "cat",
        "'s",
        "n't",
        ",",
        "12",
        "ü",
        "東京",
        "</s>",
        "<extra_id_3>",
        "<pad>",
        "e\u0301",
        " ",
        "  ",
        "\n",
        "\n\n ",
        "\t",
        "\x0b",
        "\x1c",
        "\x1f",
        "\x85",
        "\xa0",
        "\u2028",
        "\u3000",
    ]
)
ANY = st.one_of(st.lists(PARTS, max_size=12).map("".join), st.text(max_size=12))


@settings(max_examples=150, deadline=None)
@given(st.lists(ANY, max_size=4), st.booleans())
def test_units_are_encoded_as_whole_texts_are(texts, closed):
    for tokenizer in TOKENIZERS:
        encoder = Encoder(tokenizer, closed=closed)
        assert encoder._split is not None
        for _ in range(2):  # once learned, once remembered
            assert encoder(texts) == encode(tokenizer, texts, closed=closed)
        assert Encoder(tokenizer, bare=True)(texts) == bare_encodings(tokenizer, texts)


def test_a_token_that_was_added_is_found_in_the_middle_of_a_word():
    tokenizer = train_tokenizer(KINDS["bpe"], [TEXTS])
    tokenizer.backend_tokenizer.add_tokens([AddedToken("cat s", lstrip=True)])
    texts = ["the  cat sat", "the cat", "cat  sat"]
    assert Encoder(tokenizer)(texts) == encode(tokenizer, texts)


@pytest.mark.parametrize("change", ["normalizer", "dropout", "prefix"])
def test_a_tokenizer_of_another_kind_encodes_whole_texts(change):
    from tokenizers import normalizers, pre_tokenizers

    tokenizer = train_tokenizer(KINDS["bpe"], [TEXTS])
    backend = tokenizer.backend_tokenizer
    if change == "normalizer":
        backend.normalizer = normalizers.Prepend("_")
    elif change == "prefix":
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    else:
        backend.model.dropout = 0.5
    encoder = Encoder(tokenizer)
    assert encoder._split is None
    if change != "dropout":
        assert encoder(TEXTS[:2]) == encode(tokenizer, TEXTS[:2])


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr("synthesizer_attention.data.tokenizer._KEPT", 100)
    tokenizer = train_tokenizer(KINDS["bpe"], [TEXTS])
    encoder = Encoder(tokenizer)
    for number in range(50):
        texts = [f"{number} {number + 1000} {number + 2000}"]
        assert encoder(texts) == encode(tokenizer, texts)
        assert sum(map(len, encoder._known)) < 120
