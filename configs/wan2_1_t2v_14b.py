"""Wan 2.1 text-to-video 14B: trains all parameters, sharded over 8 GPUs of a node.

    python -m jaxload.train --config configs/wan2_1_t2v_14b.py \
        --dry-run --target h100-80gb --devices 8
    python -m jaxload.train --config configs/wan2_1_t2v_14b.py --workdir runs/wan-14b

The first command needs neither GPUs nor data. Every 8 GPUs hold one copy of the model,
so more GPUs make more replicas.
"""

import dataclasses
from pathlib import Path

from jaxload.config import Config, load
from jaxload.models import preset
from jaxload.parallel.config import MeshConfig


def get_config() -> Config:
    """Returns the config of the 14B model at 480p."""
    small = load(Path(__file__).with_name("wan2_1_t2v_1_3b.py"))
    return dataclasses.replace(
        small,
        model=dataclasses.replace(preset("wan2.1-t2v-14b"), remat="auto"),
        mesh=MeshConfig(fsdp=8),
        train=dataclasses.replace(
            small.train, weights="weights/Wan2.1-T2V-14B-Diffusers/transformer"
        ),
    )
