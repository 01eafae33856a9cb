"""Models that read images and sounds: their files, their audits, their conversions."""

import io
import itertools
import json
import wave
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSpeechSeq2Seq,
    CLIPConfig,
    CLIPModel,
    SwinConfig,
    SwinForImageClassification,
    ViTImageProcessorPil,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2Model,
    WhisperFeatureExtractor,
)

import browser
from pretrained import VOCAB, build, spread, tokenizer, value_of
from synthesizer_attention.audit.convert import read_tables
from synthesizer_attention.audit.examples import Example
from synthesizer_attention.audit.hook import Hook
from synthesizer_attention.audit.load import load_model, load_reader
from synthesizer_attention.audit.media import Media, encode_media, media_of, read_media, read_sound
from synthesizer_attention.audit.run import Asked, audit, read_subject
from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError

CLASSES = ("blue", "green", "red")
RATE = 16_000
WRITING = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")


def save_sound(path, samples, *, rate=RATE, width=2, channels=1):
    """Samples (frames, channels) between -1 and 1, as integers of so many bytes."""
    scaled = np.asarray(samples).reshape(-1) * (2.0 ** (8 * width - 1) - 1)
    whole = np.round(scaled).astype("<i4")
    data = (whole + 128).astype(np.uint8) if width == 1 else whole.view(np.uint8).reshape(-1, 4)
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(width)
        sound.setframerate(rate)
        sound.writeframes((data if width == 1 else data[:, :width]).tobytes())


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A ViT with a folder of images a class, and a Whisper with sounds and what they say."""
    home = tmp_path_factory.mktemp("media")
    vit = build("vit")
    vit.config.id2label = dict(enumerate(CLASSES))
    vit.config.label2id = {name: number for number, name in enumerate(CLASSES)}
    vit.save_pretrained(home / "vit")
    ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(home / "vit")
    draw = np.random.default_rng(0)
    for number, name in enumerate(CLASSES):
        (home / "images" / name).mkdir(parents=True)
        for place in range(6):
            pixels = draw.integers(0, 256, (9, 11, 3), dtype=np.uint8)
            pixels[..., number] = 255
            Image.fromarray(pixels).save(home / "images" / name / f"{place}.png")
    build("whisper").save_pretrained(home / "whisper")
    extractor = WhisperFeatureExtractor(
        feature_size=4, sampling_rate=RATE, hop_length=1000, n_fft=1200, chunk_length=1
    )
    extractor.save_pretrained(home / "whisper")
    tokenizer(WRITING).save_pretrained(home / "whisper")
    lines = ["file_name,text"]
    for place in range(12):
        times = np.arange(12_000 + 500 * place) / RATE
        save_sound(home / f"{place}.wav", 0.5 * np.sin(2 * np.pi * (200 + 50 * place) * times))
        lines.append(f"{place}.wav,{' '.join(f'w{place + k}' for k in range(2 + place % 3))}")
    (home / "sounds.csv").write_text("\n".join(lines))
    return home


DATA = {"vit": "images", "whisper": "sounds.csv"}


def measured(home, name, out, **more):
    asked = Asked(
        model=str(home / name), data=home / DATA[name], out=out, rank_examples=3, fit_examples=6,
        rankings=2, steps=3, keep=0.2, **more,
    )  # fmt: skip
    return audit(asked, lambda text: None)


def subject(home, name):
    """A model, what it reads, and all of its data."""
    metric = {"vit": "accuracy", "whisper": "loss"}[name]
    model = load_model(str(home / name), metric)
    reader = load_reader(str(home / name), model)
    files = read_media(home / DATA[name], metric, reader)
    media, length = media_of(files, metric, model, reader)
    return model, files, media, length


def test_folders_are_classes_and_batches_do_not_matter(home):
    model, files, media, length = subject(home, "vit")
    assert length == 5  # four patches and a first token
    assert [file.target for file in files] == [name for name in CLASSES for _ in range(6)]
    all_at_once = encode_media(files, media, length).run(model)
    examples = encode_media(files, media, 1000)
    assert [len(chosen) for chosen, _ in examples.batches] == [4, 4, 4, 4, 2]
    assert examples.targets == [0] * 6 + [1] * 6 + [2] * 6
    in_parts = examples.run(model)
    torch.testing.assert_close(in_parts, all_at_once)
    with torch.no_grad():
        image = Image.open(home / "images" / "red" / "3.png")
        pixels = ViTImageProcessorPil(size={"height": 8, "width": 8})(image, return_tensors="pt")
        torch.testing.assert_close(in_parts[15], model(**pixels).logits[0])
    images = home / "images"  # files lie in the order of their classes: some are drawn from all
    asked = Asked(model=str(home / "vit"), data=images, fit=images, out=home / "o", examples=9)
    assert set(read_subject(asked).judge.targets) == {0, 1, 2}


def test_what_whisper_has_to_write_begins_behind_the_start_token(home):
    """Its loss is that of Hugging Face's own training, which drops the tokenizer's start."""
    model, files, media, length = subject(home, "whisper")
    assert length == 8
    examples = encode_media(files, media, length)
    assert examples.num_cut == 3
    total = examples.run(model).sum(0)
    losses, count = 0.0, 0
    extractor = WhisperFeatureExtractor.from_pretrained(home / "whisper")
    for place, line in enumerate((home / "sounds.csv").read_text().splitlines()[1:]):
        words = line.split(",")[1].split()
        labels = torch.tensor([[4 + int(word[1:]) for word in words] + [2]])
        with wave.open(str(home / f"{place}.wav")) as sound:
            samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2") / 32768
        features = extractor(samples, sampling_rate=RATE, return_tensors="pt")
        with torch.no_grad():
            losses += model(**features, labels=labels).loss.item() * labels.numel()
        count += labels.numel()
    assert total[1] == count
    assert total[0] == pytest.approx(losses, rel=1e-5)


def finished(home, name):
    """The folder of one audit that tests share, and its record."""
    out = home / f"{name}-audit"
    if not out.exists():
        measured(home, name, out)
    return out, json.loads((out / "audit.json").read_text())


@pytest.mark.parametrize("name", DATA)
def test_an_audit_and_the_model_that_it_becomes(home, tmp_path, name, capsys):
    audited, record = finished(home, name)
    kind = {"vit": "images", "whisper": "sounds"}[name]
    assert record["reads"] == kind
    assert record["data"] == DATA[name]
    layers = 2 if name == "vit" else 4
    assert sorted(map(tuple, record["order"])) == [
        (la, h) for la in range(layers) for h in range(3)
    ]
    assert record["metric"] == {"vit": "accuracy", "whisper": "loss"}[name]
    assert record["max_len"] == {"vit": 5, "whisper": 8}[name]
    assert {row["length"] for row in record["speed"]} == {record["max_len"]}
    total = len(record["order"])
    command = ["convert", str(audited), "--heads", str(total), "--out"]
    assert main([*command, str(tmp_path / "model")]) == 0
    again = load_model(str(tmp_path / "model"), None)
    assert not any("q_proj" in key and "encoder_attn" not in key for key in again.state_dict())
    reader = load_reader(str(tmp_path / "model"), again)
    _, files, media, length = subject(home, name)
    media, last = replace(media, model=again, reader=reader), record["curve"][-1]
    asked = Asked(model=str(home / name), data=home / DATA[name], out=home, metric=record["metric"])
    judged = set(read_subject(asked).judge.texts)
    files = [file for file in files if file.texts in judged]
    examples = encode_media(files, media, length)
    assert len(examples) == record["num_judge"]
    assert value_of(examples, again) == pytest.approx(last["value"], rel=1e-4)
    tuned = [*command, str(tmp_path / "tuned"), "--tune", "4", "--tune-all"]
    assert main(tuned) == 2
    assert f"--tune needs {kind} to tune on" in capsys.readouterr().err
    assert main([*tuned, "--texts", str(home / DATA[name])]) == 0
    auto = {"vit": AutoModelForImageClassification, "whisper": AutoModelForSpeechSeq2Seq}[name]
    card = (tmp_path / "tuned" / "README.md").read_text()
    assert auto.__name__ in card
    assert type(auto.from_pretrained(tmp_path / "tuned")).__name__.startswith("Converted")


def test_the_page_shows_the_images_that_moved(home, tmp_path):
    audited, record = finished(home, "vit")
    assert record["answer"]["replaced"]
    for example in record["most_moved"]:
        assert example["image"].startswith("data:image/png")
        assert {example[key] for key in ("target", "before", "after")} <= set(CLASSES)
        assert example["texts"][0].startswith(example["target"])
    if browser.PATH is None:
        pytest.skip("no Chromium is installed")
    asked = ["[...document.images].map(image => image.naturalWidth).join()"]
    page = audited / "report.html"
    seen = browser.look(page, tmp_path / "profile", width=400, scheme="dark", ask=asked)
    assert seen.answers == [",".join(["11"] * len(record["most_moved"]))]
    assert seen.width <= 400
    assert not seen.complaints


def test_sounds_of_all_widths(tmp_path):
    for width, channels in itertools.product((1, 2, 3, 4), (1, 2)):
        samples = np.linspace(-1, 1, 50).repeat(channels)
        save_sound(tmp_path / "a.wav", samples, width=width, channels=channels)
        read = read_sound(Example(("a.wav",), file=tmp_path / "a.wav"), RATE)
        assert read.dtype == np.float32
        np.testing.assert_allclose(read, np.linspace(-1, 1, 50), atol=2.0 ** (2 - 8 * width) + 1e-6)


def test_a_parquet_file_of_bytes_is_read_as_datasets_write_it(home, tmp_path):
    model, files, media, length = subject(home, "vit")
    cells = [{"bytes": file.file.read_bytes(), "path": None} for file in files]
    labels = [CLASSES.index(file.target) for file in files]
    table = pa.table({"image": cells, "label": labels})
    pq.write_table(table, tmp_path / "images.parquet")
    packed = read_media(tmp_path / "images.parquet", "accuracy", media.reader)
    assert packed[3].texts == ("row 4",)
    one, other = (encode_media(each, media, length) for each in (files, packed))
    assert torch.equal(one.run(model), other.run(model))
    assert one.targets == other.targets


def write(folder, name, text="x"):
    (folder / name).write_text(text)
    return folder / name


def test_bad_input_is_refused_in_one_line(home, tmp_path, capsys):
    flat = tmp_path / "flat"
    flat.mkdir()
    Image.new("L", (4, 4)).save(flat / "a.png")
    broken = tmp_path / "broken" / "red"
    broken.mkdir(parents=True)
    for place in range(4):
        write(broken, f"{place}.png")
    empty = tmp_path / "empty"
    empty.mkdir()
    save_sound(tmp_path / "fast.wav", [0.1] * 100, rate=8000)
    write(tmp_path, "no.wav")
    for name in ("fast", "no"):
        rows = "".join(f"{name}.wav,w1\n" for _ in range(4))
        write(tmp_path, f"{name}.csv", f"audio,text\n{rows}")
    cases = {
        ("vit", flat): "--metric accuracy needs a label",
        ("vit", broken.parent): ".png is no image that can be read (cannot identify it)",
        ("vit", empty): "holds no images; expected .png",
        ("vit", tmp_path / "missing"): "does not exist; give a directory of images",
        ("vit", write(tmp_path, "a.csv", "text,label\na,red\n")): "has no column of images",
        ("vit", write(tmp_path, "b.csv", "image,x\na.png,red\n")): "has no column of labels",
        ("vit", write(tmp_path, "c.csv", "image,label\na.png,red\n")): "has no file 'a.png'",
        ("whisper", tmp_path / "fast.csv"): "8,000 samples a second and the model reads 16,000",
        ("whisper", tmp_path / "no.csv"): "no.wav is no WAV file of integers",
    }
    for (model, data), said in cases.items():
        assert main(["audit", str(home / model), str(data), "--out", str(tmp_path / "o")]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    for more, said in {
        ("--max-len", "4"): "--max-len is for texts, and the model reads images",
        ("--length", "4"): "--length is for texts",
        ("--metric", "spearman"): "compares pairs of texts, and a ViTModel reads images",
    }.items():
        data = str(home / "images")
        assert main(["audit", str(home / "vit"), data, *more, "--out", str(tmp_path / "o")]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_a_model_of_texts_and_images_at_once_is_refused(tmp_path):
    small = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1,
             "intermediate_size": 8}  # fmt: skip
    config = CLIPConfig(
        text_config={**small, "vocab_size": VOCAB, "max_position_embeddings": 16},
        vision_config={**small, "image_size": 8, "patch_size": 4},
    )
    CLIPModel(config).save_pretrained(tmp_path / "clip")
    tokenizer(WRITING).save_pretrained(tmp_path / "clip")
    write(tmp_path, "texts.txt", "\n".join(["w1 w2"] * 8))
    asked = Asked(model=str(tmp_path / "clip"), data=tmp_path / "texts.txt", out=tmp_path / "o")
    with pytest.raises(UserError, match=r"CLIPModel cannot be run on input_ids.* alone"):
        audit(asked, lambda text: None)


def test_a_huge_image_is_refused(home, tmp_path):
    """A small file that would take gigabytes."""
    stream = io.BytesIO()
    Image.new("1", (14_000, 14_000)).save(stream, "PNG")
    _, _, media, _ = subject(home, "vit")
    example = Example(("huge.png",), file=stream.getvalue())
    with pytest.raises(UserError, match=r"huge.png is no image that can be read"):
        media.inputs([example])


def swin():
    """Attention in windows, every second one shifted, with a bias of each head as its mask."""
    config = SwinConfig(
        image_size=32, patch_size=4, embed_dim=12, depths=[2, 1], num_heads=[2, 2], window_size=4,
        num_labels=3,
    )  # fmt: skip
    processor = ViTImageProcessorPil(size={"height": 32, "width": 32})
    return SwinForImageClassification(config), processor, "images"


def wav2vec2():
    """Reads samples, and makes more tokens of a longer sound."""
    config = Wav2Vec2Config(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
        conv_dim=[8, 8], conv_stride=[40, 40], conv_kernel=[40, 40], num_feat_extract_layers=2,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    return Wav2Vec2Model(config), Wav2Vec2FeatureExtractor(), "sounds.csv"


@pytest.mark.parametrize("architecture", [swin, wav2vec2])
def test_other_architectures_become_what_was_audited(home, tmp_path, architecture):
    torch.manual_seed(0)
    model, processor, data = architecture()
    spread(model, 0.3).save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    asked = Asked(
        model=str(tmp_path / "model"), data=home / data, out=tmp_path / "audit", rank_examples=2,
        fit_examples=4, rankings=1, steps=2, metric="agreement",
    )  # fmt: skip
    record = audit(asked, lambda text: None)
    half, out = len(record["order"]) // 2, str(tmp_path / "converted")
    assert main(["convert", str(tmp_path / "audit"), "--heads", str(half), "--out", out]) == 0
    original, converted = (load_model(path, "agreement") for path in (asked.model, out))
    reader = load_reader(str(tmp_path / "model"), original)
    files = read_media(home / data, "agreement", reader)
    batch = Media(original, reader, "agreement").inputs(files[-1:])
    with torch.no_grad(), Hook(original) as hook:
        hook.discover(batch)
        before = original(**batch)[0]
        hook.tables = read_tables(tmp_path / "audit", record, record["order"][:half])
        audited = original(**batch)[0]
    with torch.no_grad():
        torch.testing.assert_close(converted(**batch)[0], audited, atol=1e-5, rtol=1e-4)
    assert (before - audited).abs().max() > 1e-4
