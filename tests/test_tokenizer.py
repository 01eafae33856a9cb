"""Tokenizers trained on the data, and texts that are encoded word by word."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from synthesizer_attention.data.tokenizer import (
    CLS,
    EOS,
    Encoder,
    Template,
    bare_encodings,
    byte_alphabet,
    encode,
    encode_documents,
    fingerprint,
    load_tokenizer,
    sentinel,
    train_tokenizer,
)
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe_keys import Text

TEXTS = ["the cat sat on the mat", "the dog sat on the cat"] * 20
GERMAN = ["die Katze saß auf der Matte", "der Hund saß auf der Katze"] * 20
KINDS = {
    "bpe": Text(kind="bpe", vocab_size=300),
    "word": Text(kind="word", vocab_size=30),
    "byte": Text(kind="byte"),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
BYTES = train_tokenizer(KINDS["byte"], [TEXTS])
PIECES = train_tokenizer(KINDS["bpe"], [TEXTS])


@settings(max_examples=30, deadline=None)
@given(st.text())
def test_bytes_and_pieces_round_trip_any_text(text):
    for tokenizer in (BYTES, PIECES):
        (ids,) = encode(tokenizer, [text])
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("text", ["a </s> b", "<pad>", "<unk><cls>", "\x00\r\n\t \u2028 😀"])
def test_a_special_token_spelled_in_a_text_is_text(text):
    for tokenizer in (BYTES, PIECES):
        (ids,) = encode(tokenizer, [text])
        assert ids.count(tokenizer.eos_token_id) == 1
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_a_byte_is_a_token():
    (ids,) = encode(BYTES, ["é"])
    assert len(ids) == 3
    assert sorted(byte_alphabet()) == sorted(set(byte_alphabet()))
    assert len(BYTES) == 256 + 4


@every_kind
def test_a_saved_tokenizer_is_the_same_for_auto_tokenizer(kind, tmp_path):
    tokenizer = train_tokenizer(KINDS[kind], [TEXTS], Template(opening=CLS, closing=""))
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "the cat </s> sat"
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"] == encode(loaded, [text])[0]
    assert loaded.decode(loaded(text)["input_ids"]) == tokenizer.decode(
        tokenizer(text)["input_ids"]
    )
    assert fingerprint(loaded) == fingerprint(tokenizer)
    assert (loaded.pad_token_id, loaded.eos_token_id, loaded.unk_token_id) == (0, 1, 2)


@every_kind
def test_the_template_opens_and_closes_each_text(kind):
    closed = train_tokenizer(KINDS[kind], [TEXTS])
    assert encode(closed, ["the cat"])[0][-1] == closed.eos_token_id
    opened = train_tokenizer(KINDS[kind], [TEXTS], Template(opening=EOS, closing=""))
    assert encode(opened, ["the cat"])[0][0] == opened.eos_token_id
    assert encode(opened, ["the cat"], closed=True)[0][-1] == opened.eos_token_id


def test_training_twice_gives_the_same_vocabulary():
    assert fingerprint(train_tokenizer(KINDS["bpe"], [TEXTS])) == fingerprint(PIECES)


def test_words_come_back_with_single_spaces_and_the_rare_are_unknown():
    tokenizer = train_tokenizer(Text(kind="word", vocab_size=6), [TEXTS])
    (ids,) = encode(tokenizer, ["the  zebra"])
    assert tokenizer.decode(ids) == "the <unk> </s>"
    assert len(tokenizer) == 6


def test_separate_vocabularies_leave_room_for_both_sides():
    """Joint learning gives a small side nothing when the other fills the vocabulary."""
    small, large = ["zzyzx"] * 3, [f"word{number} " * 9 for number in range(99)]
    text = Text(kind="word", vocab_size=30)
    joint = train_tokenizer(text, [small, large])
    separate = train_tokenizer(text.model_copy(update={"share": "separate"}), [small, large])
    assert "zzyzx" not in joint.get_vocab()
    assert "zzyzx" in separate.get_vocab()


def test_separate_pieces_encode_both_sides():
    text = Text(vocab_size=600, share="separate")
    tokenizer = train_tokenizer(text, [TEXTS, GERMAN])
    for sentence in (TEXTS[0], GERMAN[0]):
        (ids,) = encode(tokenizer, [sentence])
        assert tokenizer.decode(ids, skip_special_tokens=True) == sentence
        assert len(ids) < len(sentence) / 2


def test_sentinels_can_be_written_by_a_user():
    tokenizer = train_tokenizer(KINDS["byte"], [TEXTS], Template(sentinels=3))
    (ids,) = encode(tokenizer, [f"a{sentinel(2)}b"])
    assert len(ids) == 4
    assert tokenizer.convert_ids_to_tokens(ids[1]) == "<extra_id_2>"


def test_documents_come_with_the_place_of_each_token():
    ((ids, starts),) = encode_documents(BYTES, ["aé"])
    assert len(ids) == 3
    assert starts == [0, 1, 1]


def test_a_vocabulary_too_small_for_bytes_is_an_error():
    with pytest.raises(UserError, match=r"text.vocab_size=100 leaves 96 pieces beside 4 special"):
        train_tokenizer(Text(vocab_size=100), [TEXTS])


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path):
    with pytest.raises(UserError, match="which is not a directory; name a tokenizer directory"):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(UserError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_without_an_end_is_an_error(tmp_path):
    bare = PreTrainedTokenizerFast(tokenizer_object=BYTES.backend_tokenizer, pad_token="<pad>")
    bare.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"has no eos_token; set it in tokenizer_config.json"):
        load_tokenizer(tmp_path)


SPOKEN = ["it's the cat's 12th mat, isn't it?", "the dog sat on the cat; über Grüße 東京"] * 20
UNITS = {
    "bpe": Text(kind="bpe", vocab_size=420),
    "word": Text(kind="word", vocab_size=120),
    "byte": Text(kind="byte"),
}
TEMPLATES = (Template(), Template(opening=CLS, closing=""), Template(opening=EOS, sentinels=100))
TOKENIZERS = [
    train_tokenizer(text, [SPOKEN], template) for text in UNITS.values() for template in TEMPLATES
]
WORDS = ["the", "cat", "'s", "n't", ",", "12", "ü", "東京", "</s>", "<extra_id_3>", "<pad>"]
SPACES = [
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
PARTS = st.sampled_from([*WORDS, "e\u0301", *SPACES])
ANY = st.one_of(st.lists(PARTS, max_size=12).map("".join), st.text(max_size=12))


@pytest.fixture(scope="module")
def one_thread():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYON_NUM_THREADS", "1")
        yield


@settings(max_examples=60, deadline=None)
@given(st.lists(ANY, max_size=4), st.booleans())
def test_units_are_encoded_as_whole_texts_are(one_thread, texts, closed):
    for tokenizer in TOKENIZERS:
        encoder = Encoder(tokenizer, closed=closed)
        assert encoder._split is not None
        for _ in range(2):  # once learned, once remembered
            assert encoder(texts) == encode(tokenizer, texts, closed=closed)
        assert Encoder(tokenizer, bare=True)(texts) == bare_encodings(tokenizer, texts)


def test_a_token_that_was_added_is_found_in_the_middle_of_a_word(one_thread):
    tokenizer = train_tokenizer(UNITS["bpe"], [SPOKEN])
    tokenizer.backend_tokenizer.add_tokens([AddedToken("cat s", lstrip=True)])
    texts = ["the  cat sat", "the cat", "cat  sat"]
    assert Encoder(tokenizer)(texts) == encode(tokenizer, texts)


@pytest.mark.parametrize("change", ["normalizer", "dropout", "prefix"])
def test_a_tokenizer_of_another_kind_encodes_whole_texts(change):
    tokenizer = train_tokenizer(UNITS["bpe"], [SPOKEN])
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
        assert encoder(SPOKEN[:2]) == encode(tokenizer, SPOKEN[:2])


def test_many_threads_encode_whole_texts(monkeypatch):
    monkeypatch.setenv("RAYON_NUM_THREADS", "8")
    assert Encoder(TOKENIZERS[0])._split is None
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    assert Encoder(TOKENIZERS[0])._split is not None


def test_what_is_remembered_is_bounded(one_thread, monkeypatch):
    monkeypatch.setattr("synthesizer_attention.data.tokenizer._KEPT", 100)
    tokenizer = train_tokenizer(UNITS["bpe"], [SPOKEN])
    encoder = Encoder(tokenizer)
    for number in range(50):
        texts = [f"{number} {number + 1000} {number + 2000}"]
        assert encoder(texts) == encode(tokenizer, texts)
        assert sum(map(len, encoder._known)) < 120
