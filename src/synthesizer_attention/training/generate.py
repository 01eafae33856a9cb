"""Answers to a user's lines: translations, summaries, replies, continuations, labels."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from synthesizer_attention.data.batch import pad_rows, real_tokens
from synthesizer_attention.data.tokenizer import load_tokenizer
from synthesizer_attention.errors import UserError
from synthesizer_attention.models.backbone import SynthesizerPreTrainedModel
from synthesizer_attention.run.recipe import Recipe
from synthesizer_attention.run.run import Run
from synthesizer_attention.tasks import prompt
from synthesizer_attention.training.accelerator import one_line_for_memory
from synthesizer_attention.training.evaluate import beam_search, until_end
from synthesizer_attention.training.finish import best_device, load_model


@dataclass(frozen=True)
class Answer:
    """One line's answer, or why there is none."""

    text: str = ""
    error: str | None = None


@dataclass(frozen=True)
class Asked:
    """How answers are to be written; None is what the recipe says."""

    beam: int | None = None
    sample: bool = False
    batch_size: int = 16
    max_new_tokens: int | None = None


class Answerer:
    """A finished run that takes lines."""

    def __init__(
        self, run: Run, asked: Asked, checkpoint: str | None = None, *, verify: bool = True
    ) -> None:
        self._model: SynthesizerPreTrainedModel = load_model(run, checkpoint, verify=verify)
        self._recipe: Recipe = run.recipe()
        self._model.to(best_device())
        self._tokenizer: PreTrainedTokenizerFast = load_tokenizer(run.model)
        self._asked = asked
        if asked.sample and (asked.beam or 1) > 1:
            raise UserError(f"--sample and --beam {asked.beam} exclude each other; choose one")

    def answer(self, lines: Iterable[bytes]) -> Iterator[Answer]:
        """One answer per line, in order; lines are read a batch at a time."""
        source, size = iter(lines), self._asked.batch_size
        while batch := list(islice(source, size)):
            with one_line_for_memory(lambda: f"; lower --batch-size, which is {size}, or --beam"):
                answers = self._answer_batch(batch)
            yield from answers

    def _answer_batch(self, lines: list[bytes]) -> list[Answer]:
        answers: list[Answer] = [Answer()] * len(lines)
        taken: list[tuple[int, int, list[int]]] = []  # new tokens, place, prompt
        for place, line in enumerate(lines):
            try:
                ids = prompt(self._recipe, self._tokenizer, _text(line))
                taken.append((self._room(ids), place, ids))
            except UserError as error:
                answers[place] = Answer(error=str(error))
        taken.sort(key=lambda entry: entry[0])
        for room, group in groupby(taken, key=lambda entry: entry[0]):
            entries = list(group)
            texts = self._texts([ids for _, _, ids in entries], room)
            for (_, place, _), text in zip(entries, texts, strict=True):
                answers[place] = Answer(text)
        return answers

    def _room(self, ids: list[int]) -> int:
        """How many tokens may be written behind a prompt."""
        config, asked = self._model.config, self._asked.max_new_tokens
        if config.kind != "decoder":
            limit = config.decoder_max_len
            return min(asked or self._recipe.evaluate.max_new_tokens or limit, limit)
        room: int = config.max_len - len(ids)
        if room < (asked or 1):
            raise UserError(
                f"the line has {len(ids)} tokens, which leaves {room} of {config.max_len} "
                f"for {asked or 'any'} new ones; shorten it or lower --max-new-tokens"
            )
        return asked or room

    def _texts(self, prompts: list[list[int]], room: int) -> list[str]:
        model = self._model
        left = model.config.kind == "decoder"
        ids = pad_rows(prompts, model.config.pad_token_id, left=left).to(model.device)
        mask = real_tokens(prompts, left=left).long().to(model.device)
        inputs = {"input_ids": ids, "attention_mask": mask}
        with torch.no_grad():
            if model.config.kind == "encoder":
                return [self._labels(row) for row in model(**inputs).logits.softmax(-1)]
            written = model.generate(**inputs, max_new_tokens=room, **self._manner())
        new = written[:, ids.shape[1] :] if left else written[:, 1:]
        kept = [until_end(row, model.config.eos_token_id) for row in new.tolist()]
        texts: list[str] = self._tokenizer.batch_decode(kept, skip_special_tokens=True)
        return [text.replace("\\", "\\\\").replace("\n", "\\n") for text in texts]

    def _manner(self) -> dict[str, object]:
        settings, asked = self._recipe.evaluate, self._asked
        if asked.sample:
            return {"do_sample": True}
        default = settings.beam if self._model.config.kind == "encoder_decoder" else 1
        return {"do_sample": False, **beam_search(settings, asked.beam or default)}

    def _labels(self, probabilities: Tensor) -> str:
        """Every label and its probability, the likeliest first."""
        order = probabilities.argsort(descending=True).tolist()
        names = self._model.config.id2label
        return "\t".join(f"{names[i]}\t{probabilities[i]:.4f}" for i in order)


def _text(line: bytes) -> str:
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise UserError("the line is not UTF-8; write it in UTF-8") from None
