"""The demo's model on your own folder of media, at a size that two cores can train.

    python -m jaxload.prepare --config configs/clips.py --media DIR
    python -m jaxload.train --config configs/clips.py --workdir runs/clips

`shapes` limits the size of clips; raise the limits for a larger model and machine.
"""

import dataclasses
from pathlib import Path

from jaxload.config import Config, load
from jaxload.shapes.config import ShapeRules


def get_config() -> Config:
    """Returns the demo's config for prepared clips of at most about a second."""
    demo = load(Path(__file__).with_name("demo.py"))
    return dataclasses.replace(
        demo,
        data=dataclasses.replace(demo.data, path="datasets/clips"),
        synthetic=None,
        shapes=ShapeRules(max_frames=17, max_pixels=64 * 112),
        model=dataclasses.replace(demo.model, num_text_tokens=16),
        # Set, not searched: in a small folder, some lengths have few clips. A compute
        # budget that these clips can fill would limit the batches of all other lengths.
        balance=dataclasses.replace(demo.balance, max_compute_tokens=640),
        train=dataclasses.replace(demo.train, num_steps=600),
        # A caption and a shape of the dataset.
        sample=dataclasses.replace(demo.sample, caption="", shape=""),
    )
