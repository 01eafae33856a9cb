"""Text to token numbers: tokenizers trained on the data, kept as Hugging Face tokenizers."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe_keys import Text

PAD, EOS, UNK, CLS = "<pad>", "</s>", "<unk>", "<cls>"
NUM_SENTINELS = 100

_MANY = 4  # threads of a tokenizer encode whole texts faster than one looks up words
_OFF = ("", "off", "false", "f", "no", "n", "0")  # as tokenizers reads TOKENIZERS_PARALLELISM
_KEPT = 2**25  # characters of distinct units that an Encoder remembers
_UNITS = re.compile(r"\s*\S+|\s+")
_SEPARATORS = re.compile("[\x1c-\x1f]")  # white space to Python, and to no tokenizer
_CUT = "\x1f"
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]


def sentinel(number: int) -> str:
    """The sentinel token of the number-th removed span."""
    return f"<extra_id_{number}>"


class Template(NamedTuple):
    """The special tokens that begin and end each encoded text, and how many sentinels there are."""

    opening: str = ""
    closing: str = EOS
    sentinels: int = 0


def train_tokenizer(
    text: Text, sides: Sequence[Iterable[str]], template: Template = Template()
) -> PreTrainedTokenizerFast:
    """Learn a vocabulary from one or two sides (source, target) of the training texts."""
    special = [PAD, EOS, UNK, CLS, *(sentinel(number) for number in range(template.sentinels))]
    separate = text.share == "separate" and len(sides) > 1
    parts: Sequence[Iterable[str]] = sides if separate else [chain.from_iterable(sides)]
    size = (text.vocab_size - len(special)) // len(parts)
    if text.kind != "byte" and size < (256 if text.kind == "bpe" else 1):
        raise UserError(
            f"text.vocab_size={text.vocab_size} leaves {size} pieces beside {len(special)} special "
            "tokens; raise text.vocab_size"
        )
    if text.kind == "byte":
        tokenizer = _bytes(special)
    elif text.kind == "word":
        tokenizer = _words(special, parts, size)
    else:
        tokenizer = _pieces(special, parts, size)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join(filter(None, [template.opening, "$A", template.closing])),
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in special[:4]],
    )
    return wrap(tokenizer)


def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Make the transformers tokenizer that is saved beside a model.

    A special token spelled in a text is text like any other, unless the sentinels of span
    corruption are there, which a user must be able to write.
    """
    sentinels = tokenizer.token_to_id(sentinel(0)) is not None
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        cls_token=CLS,
        split_special_tokens=not sentinels,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerFast:
    """Read a tokenizer directory; it must know padding and the end of a text."""
    if not Path(folder).is_dir():
        raise UserError(
            f"text.tokenizer is {folder}, which is not a directory; name a tokenizer directory"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # a damaged file ends in any type, that of tokenizers among them
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{folder} holds no tokenizer ({cause}); expected tokenizer.json") from None
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UserError(
            f"the tokenizer in {folder} has no tokenizer.json; convert it to a fast one"
        )
    for role in ("pad_token", "eos_token"):
        if getattr(tokenizer, role) is None:
            raise UserError(
                f"the tokenizer in {folder} has no {role}; set it in tokenizer_config.json"
            )
    return tokenizer


def fingerprint(tokenizer: PreTrainedTokenizerFast) -> str:
    """What changes when a tokenizer would encode differently."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def encode(
    tokenizer: PreTrainedTokenizerFast, texts: list[str], *, closed: bool = False
) -> list[list[int]]:
    """The token numbers of each text, with what the tokenizer puts before and after it.

    `closed` adds the end of text where the tokenizer (one of the user's, maybe) did not.
    """
    ids = [encoding.ids for encoding in _backend(tokenizer).encode_batch_fast(texts)]
    return close(ids, tokenizer.eos_token_id) if closed else ids


def close(lists: list[list[int]], eos: int) -> list[list[int]]:
    """Lists that all end in the end of text."""
    return [tokens if tokens[-1:] == [eos] else [*tokens, eos] for tokens in lists]


def bare_encodings(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    """The token numbers of each text alone."""
    encodings = _backend(tokenizer).encode_batch_fast(texts, add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def encode_documents(
    tokenizer: PreTrainedTokenizerFast, documents: list[str]
) -> list[tuple[list[int], list[int]]]:
    """Of each document the bare token numbers, and the character at which each token starts."""
    encodings = _backend(tokenizer).encode_batch(documents, add_special_tokens=False)
    return [(encoding.ids, [start for start, _ in encoding.offsets]) for encoding in encodings]


def _backend(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """The tokenizer beneath, several times as fast on many texts, set up as its wrapper would."""
    backend: Tokenizer = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend


def byte_alphabet() -> list[str]:
    """The character that represents each byte, 0 to 255, in byte-level tokenizers."""
    others = (byte for byte in range(256) if byte not in _PRINTABLE)
    shifted = {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [shifted.get(byte, chr(byte)) for byte in range(256)]


def _bytes(special: list[str]) -> Tokenizer:
    """One token per byte: pieces that never merge."""
    vocabulary = {token: number for number, token in enumerate([*special, *byte_alphabet()])}
    return _byte_level(Tokenizer(models.BPE(vocab=vocabulary, merges=[])), special, regex=False)


def _pieces(special: list[str], parts: Sequence[Iterable[str]], size: int) -> Tokenizer:
    """Byte-level BPE; the merges of several parts follow one another."""
    merges: dict[tuple[str, str], None] = {}
    for part in parts:
        learner = _byte_level(Tokenizer(models.BPE()), [], regex=True)
        trainer = trainers.BpeTrainer(
            vocab_size=max(size, 256), initial_alphabet=byte_alphabet(), show_progress=False
        )
        learner.train_from_iterator(part, trainer)
        merges.update((tuple(pair), None) for pair in _shape(learner)["model"]["merges"])
    pieces = dict.fromkeys([*byte_alphabet(), *("".join(pair) for pair in merges)])
    vocabulary = {token: number for number, token in enumerate([*special, *pieces])}
    model = models.BPE(vocab=vocabulary, merges=list(merges))
    return _byte_level(Tokenizer(model), special, regex=True)


def _byte_level(tokenizer: Tokenizer, special: list[str], *, regex: bool) -> Tokenizer:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    return tokenizer


def _words(special: list[str], parts: Sequence[Iterable[str]], size: int) -> Tokenizer:
    """Words between spaces, the most frequent of each part; the others are <unk>."""
    words: dict[str, None] = {}
    for part in parts:
        counts = Counter(word for text in part for word in text.split())
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        words.update(dict.fromkeys([word for word in ranked if word not in special][:size]))
    vocabulary = {token: number for number, token in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(special)
    return tokenizer


def _shape(tokenizer: Tokenizer) -> dict[str, Any]:
    """What a tokenizer is made of, as tokenizer.json says it."""
    shape: dict[str, Any] = json.loads(tokenizer.to_str())
    return shape


class Encoder:
    """Encodes many texts with one tokenizer: each distinct word once, then it is looked up.

    A pre-tokenizer cuts a text before its model sees it. That of words cuts at white space. That of
    byte-level BPE never cuts within a run of white space and the word after it in a way that
    depends on what stands before or behind, so these units can be encoded one by one:

        "two  words "  ->  "two", "  words", " "

    A text that is not made of such units, or a tokenizer of another kind, is encoded whole; so is
    every text where the tokenizer has threads enough to be faster than one with a memory. Either
    way the numbers are those of `encode`. `closed` is as there; `bare` leaves out what the
    tokenizer puts before and after a text.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, *, closed: bool = False, bare: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        shape = _shape(tokenizer.backend_tokenizer)
        added = [
            token["content"]
            for token in shape["added_tokens"]
            if not (token["special"] and tokenizer.split_special_tokens)
        ]  # which are cut out of a text before all else
        self._split = _splitter(shape) if _num_threads() < _MANY else None
        self._marks = re.compile("|".join(map(re.escape, added))) if added else None
        self._known: dict[str, list[int]] = {}
        self._size = 0  # characters of the known units
        self._opening, self._closing = ([], []) if bare else ends(tokenizer)
        self._whole = bare_encodings if bare else encode
        self._end = tokenizer.eos_token_id if closed else None

    def __call__(self, texts: list[str]) -> list[list[int]]:
        ids = self._whole(self._tokenizer, texts) if self._split is None else self._join(texts)
        return ids if self._end is None else close(ids, self._end)

    def _join(self, texts: list[str]) -> list[list[int]]:
        units = [self._units(text) for text in texts]
        if self._size > _KEPT:
            self._known, self._size = {}, 0
        met = set().union(*(found for found in units if found is not None))
        new = [unit for unit in met if unit not in self._known]
        self._size += sum(map(len, new))
        self._known.update(zip(new, bare_encodings(self._tokenizer, new), strict=True))
        known, opening, closing = self._known.__getitem__, self._opening, self._closing
        whole = [text for text, found in zip(texts, units, strict=True) if found is None]
        others = iter(self._whole(self._tokenizer, whole))
        return [
            next(others)
            if found is None
            else [*opening, *chain.from_iterable(map(known, found)), *closing]
            for found in units
        ]

    def _units(self, text: str) -> list[str] | None:
        """The units of a text; None where it must be encoded whole."""
        assert self._split is not None
        if _SEPARATORS.search(text) or (self._marks and self._marks.search(text)):
            return None
        return self._split(text)


def _num_threads() -> int:
    """How many threads `tokenizers` encodes with."""
    if os.environ.get("TOKENIZERS_PARALLELISM", "on").lower() in _OFF:
        return 1
    asked = os.environ.get("RAYON_NUM_THREADS", "0")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return int(asked if asked.isdecimal() else 0) or cores or 1


def _splitter(shape: dict[str, Any]) -> Callable[[str], list[str]] | None:
    """How a tokenizer's texts fall into units; None where that is not known."""
    before, model = shape["pre_tokenizer"] or {}, shape["model"]
    if shape["normalizer"] is not None:
        return None
    if before.get("type") == "WhitespaceSplit" and model["type"] == "WordLevel":
        return str.split
    byte_level = before.get("type") == "ByteLevel" and not before["add_prefix_space"]
    if byte_level and model["type"] == "BPE" and not model["dropout"]:
        # without its pattern a text is one piece, in which nothing may merge across units
        return _split_spaced if before["use_regex"] or not model["merges"] else None
    return None


def _split_spaced(text: str) -> list[str]:
    """Words with the white space before each; the common case, single spaces, is the quick one."""
    if " ".join(text.split()) == text:
        return text.replace(" ", _CUT + " ").split(_CUT) if text else []
    return _UNITS.findall(text)


def ends(tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """What `encode` puts before and after every text."""
    (inner,), (whole,) = bare_encodings(tokenizer, ["a"]), encode(tokenizer, ["a"])
    place = next(
        place
        for place in range(len(whole) - len(inner) + 1)
        if whole[place : place + len(inner)] == inner
    )
    return whole[:place], whole[place + len(inner) :]
