"""Reads the same micro-batches with PyTorch's DataLoader, on request.

Each line of JSON on stdin is a request, answered by a line of JSON on stdout. Runs in a
separate environment, without jaxload:

    python torch_loader.py
"""
# pyright: reportMissingImports=false

import json
import sys
import time

import safetensors.torch
import torch
from torch.utils.data import DataLoader, Dataset


class Files(Dataset):
    """Dataset with one safetensors file per sample."""

    def __init__(self, directory, num_samples):
        self.directory = directory
        self.num_samples = num_samples

    def __len__(self):
        return self.num_samples

    def __getitem__(self, row):
        return safetensors.torch.load_file(f"{self.directory}/{row}.safetensors")


class Collate:
    """Stacks tokens, and texts padded to one length."""

    def __init__(self, num_text_tokens):
        self.num_text_tokens = num_text_tokens

    def __call__(self, samples):
        width = samples[0]["text"].shape[1]
        text = torch.zeros(
            len(samples), self.num_text_tokens, width, dtype=samples[0]["text"].dtype
        )
        for padded, sample in zip(text, samples, strict=True):
            padded[: len(sample["text"])] = sample["text"]
        return {
            "tokens": torch.stack([sample["tokens"] for sample in samples]),
            "text": text,
        }


def open_loader(order):
    """Returns an iterator over the micro-batches whose rows the request lists."""
    workers = order["num_workers"]
    loader = DataLoader(
        Files(order["directory"], order["num_samples"]),
        batch_sampler=order["batches"],
        collate_fn=Collate(order["num_text_tokens"]),
        num_workers=workers,
        prefetch_factor=order["num_prefetch"] if workers else None,
        persistent_workers=False,
    )
    return iter(loader)


def main():
    """Answers requests until stdin ends."""
    torch.set_num_threads(1)
    batches = iter(())
    for line in sys.stdin:
        order = json.loads(line)
        answer = {}
        if "open" in order:
            batches = open_loader(order["open"])
        elif "save" in order:
            batch = next(batches)
            safetensors.torch.save_file(batch, order["save"])
            del batch
        elif "run" in order:
            num_warm, num_timed = order["run"]
            for _ in range(num_warm):
                next(batches)
            start = time.perf_counter()
            num_samples = 0
            for _ in range(num_timed):
                num_samples += len(next(batches)["tokens"])
            answer = {
                "seconds": time.perf_counter() - start,
                "num_samples": num_samples,
            }
        elif "close" in order:
            batches = iter(())
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
