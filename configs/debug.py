"""The demo shrunk to a run of seconds, for tests and experiments.

python -m jaxload.train --config configs/debug.py --workdir runs/debug
"""

import dataclasses
from pathlib import Path

from jaxload.config import Config, load
from jaxload.models import preset


def get_config() -> Config:
    """Returns the demo's config with three clip sizes, a tiny model and a few steps."""
    demo = load(Path(__file__).with_name("demo.py"))
    assert demo.synthetic is not None
    return dataclasses.replace(
        demo,
        data=dataclasses.replace(demo.data, path="datasets/debug"),
        synthetic=dataclasses.replace(
            demo.synthetic,
            num_samples=48,
            clips=("1x32x32", "5x32x32", "9x32x48"),
        ),
        model=preset("wan-tiny"),
        balance=dataclasses.replace(demo.balance, max_tokens=64),
        optimizer=dataclasses.replace(demo.optimizer, num_warmup_steps=2),
        train=dataclasses.replace(
            demo.train, num_steps=8, log_every=2, checkpoint_every=3
        ),
        sample=dataclasses.replace(demo.sample, shape="2x4x4", num_steps=4),
    )
