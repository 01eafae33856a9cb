"""Answers to a user's lines: translations, summaries, replies, continuations, labels."""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice

import torch
from torch import Tensor

from synthesizer_attention.data.batch import pad_rows, real_tokens
from synthesizer_attention.data.tokenizer import load_tokenizer
from synthesizer_attention.errors import UserError, one_line_for_memory
from synthesizer_attention.run.run import Run
from synthesizer_attention.tasks import prompt
from synthesizer_attention.training.evaluate import beam_search, until_end
from synthesizer_attention.training.finish import best_device, load_model

Answer = tuple[str, str | None]
"""The answer to one line, and why there is none."""


class Answerer:
    """A finished run that takes lines; None is what the recipe says."""

    def __init__(
        self,
        run: Run,
        checkpoint: str | None = None,
        *,
        verify: bool = True,
        beam: int | None = None,
        sample: bool = False,
        batch_size: int = 16,
        max_new_tokens: int | None = None,
    ) -> None:
        if sample and (beam or 1) > 1:
            raise UserError(f"--sample and --beam {beam} exclude each other; choose one")
        self._model = load_model(run, checkpoint, verify=verify).to(best_device())
        self._recipe = recipe = run.recipe()
        self._tokenizer = load_tokenizer(run.model)
        self._batch_size, self._max_new_tokens = batch_size, max_new_tokens
        default = recipe.evaluate.beam if self._model.config.kind == "encoder_decoder" else 1
        search = {} if sample else beam_search(recipe.evaluate, beam or default)
        self._search = {"do_sample": sample, **search}

    def answer(self, lines: Iterable[bytes]) -> Iterator[Answer]:
        """One answer per line, in order; lines are read a batch at a time."""
        source, size = iter(lines), self._batch_size
        while batch := list(islice(source, size)):
            with one_line_for_memory(lambda: f"; lower --batch-size, which is {size}, or --beam"):
                answers = self._answer_batch(batch)
            yield from answers

    def _answer_batch(self, lines: list[bytes]) -> list[Answer]:
        answers: list[Answer] = [("", None)] * len(lines)
        taken: list[tuple[int, int, list[int]]] = []  # new tokens, place, prompt
        for place, line in enumerate(lines):
            try:
                ids = prompt(self._recipe, self._tokenizer, _text(line))
                taken.append((self._room(ids), place, ids))
            except UserError as error:
                answers[place] = ("", str(error))
        taken.sort(key=lambda entry: entry[0])
        for room, group in groupby(taken, key=lambda entry: entry[0]):
            entries = list(group)
            texts = self._texts([ids for _, _, ids in entries], room)
            for (_, place, _), text in zip(entries, texts, strict=True):
                answers[place] = (text, None)
        return answers

    def _room(self, ids: list[int]) -> int:
        """How many tokens may be written behind a prompt."""
        config, asked = self._model.config, self._max_new_tokens
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
            written = model.generate(**inputs, max_new_tokens=room, **self._search)
        new = written[:, ids.shape[1] :] if left else written[:, 1:]
        kept = [until_end(row, model.config.eos_token_id) for row in new.tolist()]
        texts: list[str] = self._tokenizer.batch_decode(kept, skip_special_tokens=True)
        return [text.replace("\\", "\\\\").replace("\n", "\\n") for text in texts]

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
