"""The demo's model on a folder of your own, at a size that two cores can train.

    python -m jaxload.prepare --config configs/clips.py --media DIR
    python -m jaxload.train --config configs/clips.py --workdir runs/clips

`shapes` says how large a model's clips may be; raise it with the model and the machine.
"""

import dataclasses
from pathlib import Path

from jaxload.config import Config, load
from jaxload.shapes.clips import ShapeRules


def get_config() -> Config:
    """The demo, on prepared clips of at most a second."""
    demo = load(Path(__file__).with_name("demo.py"))
    return dataclasses.replace(
        demo,
        data=dataclasses.replace(demo.data, path="datasets/clips"),
        synthetic=None,
        shapes=ShapeRules(max_frames=17, max_pixels=64 * 112),
        model=dataclasses.replace(demo.model, num_text_tokens=16),
        # Given, not searched: a small folder has shapes of few clips, and a budget that
        # these could fill would hold back the batches of all others.
        balance=dataclasses.replace(demo.balance, max_compute_tokens=640),
        train=dataclasses.replace(demo.train, num_steps=600),
        sample=dataclasses.replace(
            demo.sample, caption="the earth at night turns slowly in black space"
        ),
    )
