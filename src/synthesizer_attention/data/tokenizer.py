"""Text to token numbers: tokenizers trained on the data, kept as Hugging Face tokenizers."""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe_keys import Text

PAD, EOS, UNK, CLS = "<pad>", "</s>", "<unk>", "<cls>"
NUM_SENTINELS = 100

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
    parts: Sequence[Iterable[str]] = sides if separate else [itertools.chain.from_iterable(sides)]
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
        merges.update(dict.fromkeys(_merges(learner)))
    pieces = dict.fromkeys([*byte_alphabet(), *("".join(pair) for pair in merges)])
    vocabulary = {token: number for number, token in enumerate([*special, *pieces])}
    model = models.BPE(vocab=vocabulary, merges=list(merges))
    return _byte_level(Tokenizer(model), special, regex=True)


def _merges(tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
    for merge in json.loads(tokenizer.to_str())["model"]["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        yield left, right


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
