"""A small ViT trained on scikit-learn's digits: images in a folder a class, and the model.

python digits.py DIRECTORY: train/, fit/ and test/ with 1000, 200 and 597 images, and model/
"""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

STEPS, BATCH, PEAK_RATE = 2000, 64, 2e-3


def main(out: Path) -> None:
    """Write images, train, say how good it is, and save the model."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    splits = dict(zip(("train", "fit", "test"), np.split(order, [1000, 1200]), strict=True))
    processor = ViTImageProcessorPil(size={"height": 16, "width": 16})
    inputs = {}
    for split, chosen in splits.items():
        images = []
        for place in chosen:
            folder = out / split / str(digits.target[place])
            folder.mkdir(parents=True, exist_ok=True)
            pixels = np.uint8(digits.images[place] / 16 * 255).repeat(2, 0).repeat(2, 1)
            images.append(Image.fromarray(pixels))
            images[-1].save(folder / f"{place}.png")
        found = processor([image.convert("RGB") for image in images], return_tensors="pt")
        inputs[split] = found["pixel_values"], torch.tensor(digits.target[chosen])

    torch.manual_seed(0)
    model = ViTForImageClassification(
        ViTConfig(
            hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128,
            image_size=16, patch_size=2, id2label={n: str(n) for n in range(10)},
            label2id={str(n): n for n in range(10)},
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=STEPS)
    pixels, labels = inputs["train"]
    for step in range(STEPS):
        rows = torch.randint(len(pixels), (BATCH,))
        loss = model(pixel_values=pixels[rows], labels=labels[rows]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 200 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    model.eval()
    with torch.no_grad():
        right = model(pixel_values=inputs["test"][0]).logits.argmax(-1) == inputs["test"][1]
    print(f"test accuracy {100 * right.float().mean().item():.2f}")
    model.save_pretrained(out / "model")
    processor.save_pretrained(out / "model")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
