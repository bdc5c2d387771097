"""LoRA of rank 32 on Wan 2.1 text-to-video 1.3B, on one GPU of 24 GB.

    python -m jaxload.train --config configs/wan2_1_t2v_1_3b_lora.py \
        --dry-run --target rtx4090-24gb
    python -m jaxload.train --config configs/wan2_1_t2v_1_3b_lora.py --workdir runs/lora

Only the adapters are trained; the model's own parameters are frozen, in bfloat16.
`python -m jaxload.export` merges the adapters into the weights.
"""

import dataclasses
from pathlib import Path

from jaxload.config import Config, load


def get_config() -> Config:
    """Returns the config of LoRA on the 1.3B model at 480p."""
    whole = load(Path(__file__).with_name("wan2_1_t2v_1_3b.py"))
    return dataclasses.replace(
        whole,
        model=dataclasses.replace(
            whole.model,
            lora_rank=32,
            lora_alpha=32.0,
            param_dtype="bfloat16",
            remat="auto",
        ),
        optimizer=dataclasses.replace(
            whole.optimizer, learning_rate=1e-4, num_warmup_steps=100
        ),
        train=dataclasses.replace(whole.train, num_steps=3_000),
    )
