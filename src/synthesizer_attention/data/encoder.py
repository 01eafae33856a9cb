"""Many texts to token numbers: each distinct word is encoded once, then looked up.

A pre-tokenizer cuts a text before its model sees it. That of words cuts at white space. That of
byte-level BPE never cuts within a run of white space and the word after it in a way that depends on
what stands before or behind, so these units can be encoded one by one:

    "two  words "  ->  "two", "  words", " "

A text that is not made of such units, or a tokenizer of another kind, is encoded whole. Either way
the numbers are those of `tokenizer.encode`.
"""

import json
import re
from collections.abc import Callable
from itertools import chain
from typing import Any

from transformers import PreTrainedTokenizerFast

from synthesizer_attention.data.tokenizer import bare_encodings, close, encode

Split = Callable[[str], list[str]]

_KEPT = 2**25  # characters of distinct units that are remembered
_UNITS = re.compile(r"\s*\S+|\s+")
_SEPARATORS = re.compile("[\x1c-\x1f]")  # white space to Python, and to no tokenizer
_CUT = "\x1f"


class Encoder:
    """Encodes lists of texts with one tokenizer, remembering the units it has met.

    `closed` is as for `encode`; `bare` leaves out what the tokenizer puts before and after a text.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, *, closed: bool = False, bare: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        shape = json.loads(tokenizer.backend_tokenizer.to_str())
        self._split = _splitter(shape)
        self._marks = _marks(shape, split_special=tokenizer.split_special_tokens)
        self._known: dict[str, list[int]] = {}
        self._size = 0  # characters of the known units
        self._opening, self._closing = ([], []) if bare else _ends(tokenizer)
        self._whole = bare_encodings if bare else encode
        self._end = tokenizer.eos_token_id if closed else None

    def __call__(self, texts: list[str]) -> list[list[int]]:
        """The token numbers of each text."""
        ids = self._whole(self._tokenizer, texts) if self._split is None else self._join(texts)
        return ids if self._end is None else close(ids, self._end)

    def _join(self, texts: list[str]) -> list[list[int]]:
        units = [self._units(text) for text in texts]
        self._learn(set().union(*(found for found in units if found is not None)))
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

    def _learn(self, units: set[str]) -> None:
        if self._size > _KEPT:
            self._known, self._size = {}, 0
        new = [unit for unit in units if unit not in self._known]
        self._size += sum(map(len, new))
        self._known.update(zip(new, bare_encodings(self._tokenizer, new), strict=True))


def _splitter(shape: dict[str, Any]) -> Split | None:
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


def _marks(shape: dict[str, Any], *, split_special: bool) -> re.Pattern[str] | None:
    """What finds the tokens that are cut out of a text before all else."""
    added = [
        token["content"]
        for token in shape["added_tokens"]
        if not (token["special"] and split_special)
    ]
    return re.compile("|".join(map(re.escape, added))) if added else None


def _ends(tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """What `encode` puts before and after every text."""
    (inner,), (whole,) = bare_encodings(tokenizer, ["a"]), encode(tokenizer, ["a"])
    place = next(
        place
        for place in range(len(whole) - len(inner) + 1)
        if whole[place : place + len(inner)] == inner
    )
    return whole[:place], whole[place + len(inner) :]
