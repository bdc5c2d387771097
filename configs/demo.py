"""A small Wan, trained on synthetic clips in about two minutes on two cores.

    python -m jaxload.train --config configs/demo.py --workdir runs/demo

The demo needs no download: it draws clips of moving shapes, and encodes them with the
built-in codec.
"""

from jaxload.balance.config import BalanceConfig
from jaxload.config import Config
from jaxload.data.config import DataConfig
from jaxload.media.config import SyntheticConfig
from jaxload.models import preset
from jaxload.sampling.config import SampleConfig
from jaxload.training.config import FlowConfig, OptimizerConfig, TrainConfig


def get_config() -> Config:
    """Returns the demo's config."""
    return Config(
        data=DataConfig(path="datasets/demo"),
        synthetic=SyntheticConfig(
            num_samples=1_024,
            clips=(
                "1x64x64",
                "17x64x64",
                "1x96x96",
                "9x64x64",
                "5x48x96",
                "17x64x96",
                "1x96x64",
                "13x64x64",
                "33x64x64",
                "17x96x64",
                "33x64x96",
                "49x64x64",
            ),
        ),
        model=preset("wan-demo"),
        balance=BalanceConfig(max_tokens=640, max_buckets=8),
        flow=FlowConfig(),
        optimizer=OptimizerConfig(learning_rate=2e-3, num_warmup_steps=20),
        train=TrainConfig(num_steps=800, log_every=50),
        sample=SampleConfig(
            caption="a large red circle moving right on a black background",
            shape="5x8x8",
        ),
    )
