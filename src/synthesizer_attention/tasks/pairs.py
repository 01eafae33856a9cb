"""Text to text: translation, summaries, replies, and a text to its principal sentence.

A task of this shape is a Form in FORMS, and its metrics are those of METRICS that name it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from synthesizer_attention.data.batch import Batch, Ragged, pair_batch
from synthesizer_attention.data.cache import Entry, Fields
from synthesizer_attention.data.columns import NAMES, BadRow, text_of, texts_of
from synthesizer_attention.data.files import Row
from synthesizer_attention.data.prepare import Columns, Examples, Fitter, Limit, tokenizer_texts
from synthesizer_attention.data.sources import SPLITS, Source
from synthesizer_attention.data.tokenizer import train_tokenizer
from synthesizer_attention.metrics.labels import DOCUMENTS
from synthesizer_attention.metrics.language_model import ENOUGH_TOKENS, token_bigram_perplexity
from synthesizer_attention.metrics.scores import METRICS, of_task, score
from synthesizer_attention.metrics.text import EMBEDDING, train_vectors
from synthesizer_attention.run.recipe import Recipe
from synthesizer_attention.tasks.task import HELD_OUT, SHOWN, Built, ListTask, Outputs, Scores

Array = NDArray[Any]
Baseline = Callable[[Iterable[Fields], list[str]], list[str]]

TURN = " || "  # between the turns of a conversation
SHORTEST = 4  # words of a sentence that is worth copying
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n")
_WORD = re.compile(r"\w+")
_ENOUGH_ROWS = 5_000  # that a dictionary is made from


def translate_by_dictionary(train: Iterable[Fields], sources: list[str]) -> list[str]:
    """Each source word becomes the one target word it keeps company with in the training rows.

    The pair with the greatest Dice coefficient is linked, then the next; no word is linked twice.
    """
    here: Counter[str] = Counter()
    there: Counter[str] = Counter()
    together: Counter[tuple[str, str]] = Counter()
    for source, target in islice(train, _ENOUGH_ROWS):
        ours, theirs = set(_WORD.findall(source)), set(_WORD.findall(target))
        here.update(ours)
        there.update(theirs)
        together.update(product(ours, theirs))
    dice = {pair: count / (here[pair[0]] + there[pair[1]]) for pair, count in together.items()}
    linked: dict[str, str] = {}
    taken: set[str] = set()
    for word, translation in sorted(dice, key=lambda pair: (-dice[pair], pair)):
        if word not in linked and translation not in taken:
            linked[word] = translation
            taken.add(translation)
    return [_WORD.sub(lambda word: linked.get(word[0], word[0]), text) for text in sources]


def first_sentences(train: Iterable[Fields], sources: list[str]) -> list[str]:
    """What every source begins with, up to the end of its first sentence."""
    return [_SENTENCE_END.split(source.strip(), maxsplit=1)[0] for source in sources]


def _read_pair(row: Row, columns: Columns) -> list[Fields]:
    return [(text_of(row, columns["source"]), text_of(row, columns["target"]))]


def _dialogue_roles(sample: list[Row], given: Mapping[str, str]) -> Fields:
    """Conversations where a column is named so or holds lists, else histories and replies."""
    names = {name.lower() for row in sample for name in row.fields}
    lists = any(isinstance(value, list) for row in sample for value in row.fields.values())
    if "dialog" in given or (lists and names & set(NAMES["dialog"])):
        persona = "persona" in given or names & set(NAMES["persona"])
        return ("dialog", "persona") if persona else ("dialog",)
    return ("history", "reply")


def _read_dialogue(row: Row, columns: Columns) -> list[Fields]:
    """One example per reply of a conversation, or one history with its reply.

    A persona describes the second speaker, as in PersonaChat, so that only this speaker's replies
    are examples: what the first one says has nothing to do with it.
    """
    if "dialog" not in columns:
        return [(text_of(row, columns["history"]), text_of(row, columns["reply"]))]
    persona = texts_of(row, columns["persona"]) if "persona" in columns else []
    turns = texts_of(row, columns["dialog"])
    if len(turns) < 2:
        raise BadRow(f"column '{columns['dialog']}' has {len(turns)} turns; a reply needs two")
    replies = range(1, len(turns), 2 if persona else 1)
    return [(TURN.join([*persona, *turns[:n]]), turns[n]) for n in replies]


def _read_principal(row: Row, columns: Columns) -> list[Fields]:
    """No example where a text has no two sentences, or none of them is long enough."""
    column = columns["text"]
    turns = isinstance(row.fields.get(column), list)
    text = "\n".join(texts_of(row, column)) if turns else text_of(row, column)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    chosen = principal_sentence(lines if len(lines) > 1 else _SENTENCE_END.split(text.strip()))
    return [] if chosen is None else [(text, chosen)]


def principal_sentence(sentences: list[str]) -> str | None:
    """The sentence most like all others by the F1 of ROUGE-1; of several the first.

    PEGASUS chooses gap sentences by it. Here the sentence, or turn of a conversation, stays in the
    text: a small model first has to learn to copy, for which span corruption gives little reason.
    """
    counts = [Counter(_WORD.findall(sentence.lower())) for sentence in sentences]
    total = sum(counts, Counter[str]())
    long_enough = [i for i, words in enumerate(counts) if words.total() >= SHORTEST]
    if len(sentences) < 2 or not long_enough:
        return None
    # twice the words shared with the rest over all words, which is the same for every sentence
    shared = {i: (counts[i] & (total - counts[i])).total() for i in long_enough}
    return sentences[max(long_enough, key=lambda i: shared[i])]


@dataclass(frozen=True)
class Form:
    """What tells one text-to-text task from another."""

    main_metric: str
    baseline: Baseline | None  # train, sources: what can be written without a network; or a bigram
    baseline_name: str  # its key in the report of the data
    roles: Fields | Callable[[list[Row], Mapping[str, str]], Fields] = ("source", "target")
    read: Callable[[Row, Columns], list[Fields]] = _read_pair
    keep_end: bool = False  # of a source that is too long
    turn: str | None = None  # what joins the turns of a conversation


FORMS = {
    "translation": Form("bleu", translate_by_dictionary, "dictionary"),
    "summarization": Form("rougeL", first_sentences, "first_sentence"),
    "principal_sentence": Form(
        "rougeL", first_sentences, "first_sentence", roles=("text",), read=_read_principal
    ),
    "dialogue": Form(
        "perplexity", None, "bigram",
        roles=_dialogue_roles, read=_read_dialogue, keep_end=True, turn=TURN,
    ),
}  # fmt: skip


class PairTask(ListTask):
    """Lists of source and target tokens for an encoder-decoder."""

    kind = "encoder_decoder"
    generates = True
    sides = ("source", "target")

    def _decode(self, lists: Ragged, limit: int | None = None) -> list[str]:
        """The texts of token lists, without special tokens."""
        count = len(lists) if limit is None else min(limit, len(lists))
        rows = [lists[index].tolist() for index in range(count)]
        texts: list[str] = self.tokenizer.batch_decode(rows, skip_special_tokens=True)
        return texts

    def _batch(self, split: str, lists: list[list[Array]], indices: Array) -> Batch:
        sources, targets = lists
        return pair_batch(sources, targets, indices=indices, pad=self.tokenizer.pad_token_id)


class Pairs(PairTask):
    """Source and target texts, in a form."""

    def __init__(self, recipe: Recipe, tokenizer_dir: str | Path | None) -> None:
        self._form = FORMS[recipe.task]
        self.main_metric = self._form.main_metric
        self.higher_is_better = METRICS[self.main_metric].higher_is_better
        super().__init__(recipe, tokenizer_dir)

    def score(self, split: str, outputs: Outputs) -> Scores:
        """The task's metrics of the generated texts, and the perplexity of the references.

        Train's texts are not kept, because of their size: they are decoded from their tokens.
        """
        texts, metrics = list(outputs.texts), of_task(self._recipe.task)
        if split == "train":
            lists = self._lists(split)
            sources, references = self._decode(lists[0], SHOWN), self._decode(lists[1])
        else:
            sources = self._meta["sources"][split]
            references = self._meta["references"][split][: self._limit(split)]
        vectors = dict(zip(self._meta["words"], self._arrays["vectors"], strict=True))
        rows = {
            name: metric.measure(texts, references, vectors) for name, metric in metrics.items()
        }
        rows["perplexity"] = outputs.perplexity_statistics()
        found = {name: score(name, each) for name, each in rows.items()}
        found |= self._score_parts(split, rows[self.main_metric])
        signed = {name: metric.sign(references, vectors) for name, metric in metrics.items()
                  if metric.sign}  # fmt: skip
        shown = zip(sources, references, texts, strict=False)
        samples = [dict(zip(("source", "reference", "output"), s, strict=True)) for s in shown]
        samples = samples[: self._recipe.evaluate.samples]
        single = np.arange(len(references))  # train: documents are for verdicts
        rows[DOCUMENTS] = self._arrays.get(f"{split}.documents", single)[: len(references)]
        return Scores({**found, "loss": outputs.loss}, signed, rows, samples)

    def _build(self, source: Source, given: PreTrainedTokenizerFast | None) -> Built:
        recipe, form, prefix = self._recipe, self._form, self._recipe.data.prefix

        def read(row: Row, columns: Columns) -> list[Fields]:
            return [(prefix + source, *rest) for source, *rest in form.read(row, columns)]

        examples = Examples(recipe.data, source, form.roles, read)
        train = examples.split("train")
        tokenizer = given or train_tokenizer(
            recipe.text, tokenizer_texts(recipe.text, train, [0, 1], examples.report)
        )
        limits = pair_limits(recipe, keep_end=form.keep_end)
        fitter = Fitter(tokenizer, limits, recipe.data, closed=True)
        arrays: dict[str, Array] = {"vectors": np.empty((0, 0))}
        meta: dict[str, Any] = {"references": {}, "sources": {}, "words": []}
        vectors: dict[str, Array] = {}
        for split in SPLITS:
            lists, kept = fitter.encode(split, examples.split(split))
            self._store(arrays, split, lists)
            if split != "train":
                arrays[f"{split}.documents"] = conversations([*kept.column(0)], form.turn)
                meta["references"][split] = [*kept.column(1)]
                meta["sources"][split] = [*kept.column(0)][:SHOWN]
            elif EMBEDDING in of_task(recipe.task):
                vectors = train_vectors([*kept.column(1)])
                meta["words"], arrays["vectors"] = [*vectors], np.stack([*vectors.values()])
        report = {
            **examples.report,
            "overlong": fitter.report,
            "longest": fitter.longest,
            "vocab_size": len(tokenizer),
        }
        if form.baseline:
            report[form.baseline_name] = self._judge_baseline(form.baseline, examples, vectors)
        else:  # replies are many and seldom a reference: what a model of their tokens expects
            flat = {split: arrays[f"{split}.target.flat"] for split in SPLITS}
            known, vocab = flat["train"][:ENOUGH_TOKENS], len(tokenizer)
            report[form.baseline_name] = {
                s: token_bigram_perplexity(known, flat["validation"], flat[s], vocab)
                for s in HELD_OUT
            }
        return tokenizer, Entry(arrays, {**meta, "report": report})

    def _judge_baseline(
        self, baseline: Baseline, examples: Examples, vectors: dict[str, Array]
    ) -> dict[str, float]:
        """The main metric of what can be written without a network."""
        texts = {n: [list(examples.split(n).column(side)) for side in (0, 1)] for n in HELD_OUT}
        chunks = examples.split("train").chunks()
        train = (pair for chunk in chunks for pair in chunk)  # which may be millions
        sources = [source for n in HELD_OUT for source in texts[n][0]]
        written, found = iter(baseline(train, sources)), {}
        for split, (_, references) in texts.items():
            outputs = list(islice(written, len(references)))
            rows = METRICS[self.main_metric].measure(outputs, references, vectors)
            found[split] = score(self.main_metric, rows)
        return found


def conversations(sources: list[str], turn: str | None) -> Array:
    """A number per example; one whose source goes on from the one before shares its number."""
    pairs = pairwise(sources)
    goes_on = [turn is not None and source.startswith(last + turn) for last, source in pairs]
    return np.cumsum([0, *(not same for same in goes_on)])


def pair_limits(recipe: Recipe, *, keep_end: bool = False) -> list[Limit]:
    """How long a source and a target may be."""
    target = recipe.model.decoder_max_len
    assert target is not None
    return [
        Limit(recipe.model.max_len, "model.max_len", keep_end),
        Limit(target, "model.decoder_max_len"),
    ]


build = Pairs
