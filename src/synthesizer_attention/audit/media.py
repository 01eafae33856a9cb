"""Images and sounds as examples, for models that read no tokens, such as ViT and Whisper.

data                                     what is right
a directory with one folder a class      the folder's name
a directory of files                     nothing: --metric agreement
.csv, .jsonl or .parquet with a column   its label or, for a model that writes, its text
of paths, or of bytes as Hugging Face's
datasets store them

Sounds are WAV files at the rate that the model reads. Files are decoded batch by batch whenever
they are read: all at once would fill the memory.
"""

import base64
import io
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from transformers import PreTrainedModel

from synthesizer_attention.audit.examples import (
    BATCH_TOKENS,
    METRICS,
    Example,
    Examples,
    decoder_row,
    found_path,
    pad,
    rows_of,
    target_tokens,
)
from synthesizer_attention.audit.hook import Hook
from synthesizer_attention.audit.load import IMAGES, Reader, reads_targets
from synthesizer_attention.data.columns import NAMES
from synthesizer_attention.data.files import files_below
from synthesizer_attention.errors import UserError, listed
from synthesizer_attention.run.files import check_regular_file

SUFFIXES = {
    "images": (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    "sounds": (".wav",),
}
COLUMNS = {  # by which files are known, the likeliest first
    "images": ("image", "img", "picture", "file_name", "file", "path"),
    "sounds": ("audio", "sound", "speech", "file_name", "file", "path"),
}
WRITTEN = (*NAMES["text"], "transcript", "transcription", "caption", *NAMES["target"])
_THUMBNAIL = 96  # pixels, at most, on each side


def read_media(path: Path, metric: str, reader: Reader) -> list[Example]:
    """The files that a directory or a column holds, and what is right of each."""
    path = found_path(path, f"a directory of {reader.kind}, or a .csv or .parquet with a column")
    found = _folder(path, reader.kind) if path.is_dir() else _table(path, metric, reader)
    if METRICS[metric].column and any(example.target is None for example in found):
        raise UserError(
            f"--metric {metric} needs a label, and {path} has {reader.kind} without one; put each "
            "class into a folder of its own, or choose --metric agreement"
        )
    return found


def _folder(folder: Path, kind: str) -> list[Example]:
    """Every file of this kind below a directory; the first folder on its way is its class."""
    files = [path for path in files_below(folder) if path.suffix.lower() in SUFFIXES[kind]]
    if not files:
        raise UserError(
            f"{folder} holds no {kind}; expected {', '.join(SUFFIXES[kind])}, one folder a class"
        )
    parts = [path.relative_to(folder).parts for path in files]
    return [
        Example(("/".join(names),), names[0] if len(names) > 1 else None, path)
        for names, path in zip(parts, files, strict=True)
    ]


def _table(path: Path, metric: str, reader: Reader) -> list[Example]:
    rows = rows_of(path, f"{reader.kind}, one a row")
    names, how = list(rows[0].fields), METRICS[metric]
    column = _column(names, COLUMNS[reader.kind], path, reader.kind)
    right = ""
    if how.column:
        right = _column(names, how.column, path, "labels")
    elif how.has_tokens:
        right = _column([name for name in names if name != column], WRITTEN, path, "texts")
    found = []
    for row in rows:
        name, file = _file(row.fields[column], path.parent, f"{path}, row {row.number}")
        said = row.fields.get(right)
        texts = (name, str(said or "")) if how.has_tokens else (name,)
        found.append(Example(texts, said if how.column else None, file))
    return found


def _column(names: Sequence[str], known: Sequence[str], path: Path, what: str) -> str:
    found = next((name for wanted in known for name in names if name.lower() == wanted), None)
    if found is None:
        raise UserError(
            f"{path} has no column of {what}: it has {listed(names)}; name one "
            f"{', '.join(known[:3])} or the like"
        )
    return found


def _file(cell: Any, folder: Path, where: str) -> tuple[str, Path | bytes]:  # noqa: ANN401
    """The name of a cell's file, and the file: a path, or {bytes, path}."""
    if isinstance(cell, Mapping) and cell.get("bytes"):
        return str(cell.get("path") or where.rpartition(", ")[2]), bytes(cell["bytes"])
    name = cell.get("path") if isinstance(cell, Mapping) else cell
    if not isinstance(name, str) or not (folder / name).is_file():
        raise UserError(
            f"{where}: {folder} has no file {str(name)[:100]!r}; give a path from there, or bytes"
        )
    return name, folder / name


@dataclass(frozen=True)
class Media:
    """Turns files into the inputs of one model."""

    model: PreTrainedModel
    reader: Reader
    metric: str
    max_target: int | None = None  # tokens that an encoder-decoder writes

    def inputs(self, examples: Sequence[Example], *, tuning: bool = False) -> dict[str, Tensor]:
        """The files decoded, and their targets: labels or, for a tuning, what a decoder reads."""
        key, processor = self.model.main_input_name, self.reader.processor
        if self.reader.kind == IMAGES:
            found = processor([open_image(e) for e in examples], return_tensors="pt")
        else:
            rate = processor.sampling_rate
            sounds = [read_sound(example, rate) for example in examples]
            found = processor(sounds, sampling_rate=rate, return_tensors="pt")
        batch = {key: found[key]}
        if reads_targets(self.model) if tuning else METRICS[self.metric].has_tokens:
            rows = []
            for example in examples:
                target = target_tokens(example, self.reader.tokenizer, self.max_target)
                if target[:1] == [self.model.config.decoder_start_token_id]:
                    target = target[1:]  # a decoder is given it as its beginning
                row = decoder_row([], target, self.model) if tuning else {"labels": target}
                rows.append({name: ids for name, ids in row.items() if name != "input_ids"})
            batch |= pad(rows, self.reader.tokenizer)
        return batch


class Batches(Sequence[tuple[list[int], dict[str, Tensor]]]):
    """Batches whose files are decoded when they are asked for."""

    def __init__(self, media: Media, examples: Sequence[Example], size: int) -> None:
        self.media, self.examples, self.size = media, examples, size

    def __len__(self) -> int:
        return -(-len(self.examples) // self.size)

    def __getitem__(self, place: Any) -> Any:  # noqa: ANN401  an int; typed as Sequence asks
        place = range(len(self))[place]
        chosen = list(range(len(self.examples)))[place * self.size : (place + 1) * self.size]
        return chosen, self.media.inputs([self.examples[i] for i in chosen])


def media_of(
    examples: Sequence[Example], metric: str, model: PreTrainedModel, reader: Reader
) -> tuple[Media, int]:
    """The reader of a model's files, and how many tokens attention sees of one."""
    media = Media(model, reader, metric)
    longest = examples[0] if reader.kind == IMAGES else max(examples, key=_num_samples)
    length, inputs = 0, media.inputs([longest], tuning=True)

    def look(_: int, weights: Tensor, __: Tensor) -> None:
        nonlocal length
        length = max(length, weights.shape[-1])

    with Hook(model) as hook:
        hook.discover(inputs)
        hook.read([inputs], look)
    config: Any = model.config.get_text_config(decoder=True)
    known = getattr(config, "max_target_positions", None)
    known = known or getattr(config, "max_position_embeddings", None)
    return replace(media, max_target=min(length, known or length)), length


def encode_media(
    examples: Sequence[Example], media: Media, max_len: int, limit: int | None = None
) -> Examples:
    """The first `limit` files in batches; sounds of their own lengths are read one by one."""
    drawn_from, examples, how = len(examples), examples[:limit], METRICS[media.metric]
    targets = [how.target(example.target, media.model.config) for example in examples]
    size, num_cut = max(1, BATCH_TOKENS // max_len), 0
    if media.reader.kind != IMAGES:
        longest = getattr(media.reader.processor, "n_samples", None)
        size = size if longest else 1
        num_cut = sum(_num_samples(e) > longest for e in examples) if longest else 0
    batches, texts = Batches(media, examples, size), [example.texts for example in examples]
    return Examples(media.metric, batches, targets, num_cut, texts, drawn_from)


def open_image(example: Example) -> Image.Image:
    """In colours, as processors expect it."""
    try:
        with Image.open(_opened(example)) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        unknown = isinstance(error, UnidentifiedImageError)
        cause = "cannot identify it" if unknown else str(error)
        raise UserError(
            f"{example.texts[0]} is no image that can be read ({cause}); convert or remove it"
        ) from None


def thumbnail(example: Example) -> str:
    """A small image as the address of its own data."""
    image = open_image(example)
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    image.save(stream := io.BytesIO(), "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def read_sound(example: Example, rate: int) -> NDArray[np.float32]:
    """The samples of a WAV file between -1 and 1, its channels averaged."""
    name = example.texts[0]
    with _wave(example) as sound:
        if sound.getframerate() != rate:
            raise UserError(
                f"{name} has {sound.getframerate():,} samples a second and the model reads "
                f"{rate:,}; convert it: ffmpeg -i {name} -ar {rate} new.wav"
            )
        width, channels = sound.getsampwidth(), sound.getnchannels()
        data = np.frombuffer(sound.readframes(sound.getnframes()), np.uint8)
    data = data[: len(data) // (width * channels) * (width * channels)]
    if width == 1:  # the one width without a sign
        samples = data.astype(np.float64) - 128
    else:  # into the upper bytes of 32 bits, which keeps the sign
        wide = np.zeros((len(data) // width, 4), np.uint8)
        wide[:, 4 - width :] = data.reshape(-1, width)
        samples = wide.view("<i4")[:, 0] / 2.0 ** (32 - 8 * width)
    samples = samples.reshape(-1, channels).mean(1) / 2.0 ** (8 * width - 1)
    if not len(samples):
        raise UserError(f"{name} holds no sound; remove it")
    return samples.astype(np.float32)


def _num_samples(example: Example) -> int:
    with _wave(example) as sound:
        return sound.getnframes()


def _wave(example: Example) -> wave.Wave_read:
    try:
        return wave.open(_opened(example), "rb")
    except (wave.Error, EOFError) as error:
        name = example.texts[0]
        raise UserError(
            f"{name} is no WAV file of integers ({error}); convert it: ffmpeg -i {name} new.wav"
        ) from None


def _opened(example: Example) -> io.BytesIO:
    file = example.file
    assert file is not None
    if isinstance(file, Path):
        check_regular_file(file)
        file = file.read_bytes()
    return io.BytesIO(file)
