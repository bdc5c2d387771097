"""LoRA of rank 32 on Wan 2.1 text-to-video 14B, on one GPU of 80 GB.

    python -m jaxload.train --config configs/wan2_1_t2v_14b_lora.py \
        --dry-run --target h100-80gb
    python -m jaxload.train --config configs/wan2_1_t2v_14b_lora.py \
        --workdir runs/lora-14b

Only the adapters are trained; the model's own parameters are frozen, in bfloat16. Every
GPU is a replica.
"""

import dataclasses
from pathlib import Path

from jaxload.config import Config, load
from jaxload.models import preset
from jaxload.parallel.config import MeshConfig


def get_config() -> Config:
    """Returns the config of LoRA on the 14B model at 480p."""
    whole = load(Path(__file__).with_name("wan2_1_t2v_14b.py"))
    adapters = load(Path(__file__).with_name("wan2_1_t2v_1_3b_lora.py"))
    return dataclasses.replace(
        whole,
        model=dataclasses.replace(
            preset("wan2.1-t2v-14b"),
            lora_rank=adapters.model.lora_rank,
            lora_alpha=adapters.model.lora_alpha,
            param_dtype="bfloat16",
            remat="auto",
        ),
        mesh=MeshConfig(),
        optimizer=adapters.optimizer,
        train=dataclasses.replace(adapters.train, weights=whole.train.weights),
    )
