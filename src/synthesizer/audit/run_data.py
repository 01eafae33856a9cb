"""The data that a run of `synthesizer train` was made with, as an audit reads them.

Train averages and ranks, in the order in which it was trained on; test judges. Texts are encoded,
cut and padded as in training: the loss with nothing replaced is the one in the run's result.json.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from synthesizer.audit.encode import decoder_row
from synthesizer.audit.examples import IGNORED, Examples, draw
from synthesizer.audit.load import reads_targets
from synthesizer.data.batch import Batch
from synthesizer.errors import UserError
from synthesizer.experiment.run import Run
from synthesizer.tasks.build import build_task
from synthesizer.tasks.task import Task


class RunData:
    """Examples of one run's splits."""

    def __init__(self, run: Run, metric: str) -> None:
        if metric == "spearman":
            raise UserError(
                "--metric spearman needs pairs and a score, which a run's own data have not; give "
                "a file of them as DATA"
            )
        self.recipe, self.metric = run.recipe(), metric
        self.task: Task = build_task(self.recipe, tokenizer_dir=run.model)

    def fitting(self, limit: int) -> Examples:
        """The first examples that training saw, which drew them."""
        return self._examples(self.task.train_batches(), set(range(limit)))

    def judging(self, limit: int | None, seed: int) -> Examples:
        """Those of test, or some of them at random."""
        batches = list(self.task.batches("test"))
        count = sum(len(batch.inputs["input_ids"]) for batch in batches)
        found = self._examples(batches, set(draw(count, limit, seed)))
        return replace(found, drawn_from=count)

    def rows(self, model: PreTrainedModel) -> list[dict[str, list[int]]]:
        """Train's examples to tune on: of an encoder-decoder with targets, of others without."""
        found: list[dict[str, list[int]]] = []
        for batch in self.task.batches("train"):
            ids, mask = batch.inputs["input_ids"], batch.inputs.get("attention_mask")
            real = [len(row) for row in ids] if mask is None else mask.sum(1).tolist()
            sources = [row[:n].tolist() for row, n in zip(ids, real, strict=True)]
            if not reads_targets(model):
                found += [{"input_ids": source} for source in sources]
                continue
            targets = [row[row != IGNORED].tolist() for row in batch.inputs["labels"]]
            both = zip(sources, targets, strict=True)
            found += [decoder_row(source, target, model) for source, target in both]
        return found

    def _examples(self, batches: Iterable[Batch], wanted: set[int]) -> Examples:
        """Those whose places, counted over all batches, are wanted."""
        kept: list[tuple[list[int], dict[str, Tensor]]] = []
        targets: list[Any] = []
        texts: list[tuple[str, ...]] = []
        seen = 0
        for batch in batches:
            size = len(batch.inputs["input_ids"])
            rows = [row for row in range(size) if seen + row in wanted]
            seen += size
            if not rows:
                continue
            inputs = {key: value[rows] for key, value in batch.inputs.items()}
            labels = inputs["labels"]
            if self.metric != "loss":  # a label is right or wrong, and read by no model
                del inputs["labels"]
            first = len(texts)
            texts += self._texts(inputs["input_ids"], labels)
            targets += labels.tolist() if labels.dim() == 1 else [None] * len(labels)
            kept.append((list(range(first, len(texts))), inputs))
            if len(texts) == len(wanted):
                break
        return Examples(self.metric, kept, targets, 0, texts)

    def _texts(self, ids: Tensor, labels: Tensor) -> list[tuple[str, ...]]:
        """What a reader sees of each example: its text, and that of an encoder-decoder's target."""
        sides = [ids]
        if self.task.kind == "encoder_decoder":
            sides.append(labels.masked_fill(labels == IGNORED, self.task.tokenizer.pad_token_id))
        decoded = [self.task.tokenizer.batch_decode(s, skip_special_tokens=True) for s in sides]
        return list(zip(*decoded, strict=True))
