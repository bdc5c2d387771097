"""Wan 2.1 text-to-video 1.3B: trains all parameters from the released weights.

    python -m jaxload.train --config configs/wan2_1_t2v_1_3b.py \
        --dry-run --target h100-80gb
    python -m jaxload.train --config configs/wan2_1_t2v_1_3b.py --workdir runs/wan-1.3b

The first command needs neither the GPU nor the data; it prints the bytes of each
program. The second needs the weights and a dataset. The released model was trained with
the latents of Wan's VAE and the embeddings of umT5. Name the codec and the text encoder
of your dataset with
`--set data.codec=MODULE:ATTRIBUTE --set data.text_encoder=MODULE:ATTRIBUTE`. One GPU of
80 GB can hold the state of 1.3B parameters, so every GPU is a replica. Set
XLA_CLIENT_MEM_FRACTION=0.95 so that JAX may use nearly all of the GPU's memory.
"""

from jaxload.balance.config import BalanceConfig
from jaxload.config import Config
from jaxload.data.config import DataConfig
from jaxload.models import preset
from jaxload.parallel.config import MeshConfig
from jaxload.sampling.config import SampleConfig
from jaxload.shapes.config import ShapeRules
from jaxload.training.config import FlowConfig, OptimizerConfig, TrainConfig


def get_config() -> Config:
    """Returns the config of the 1.3B model at 480p."""
    return Config(
        data=DataConfig(
            path="datasets/wan-480p",
            num_threads=8,
            # Images, and clips of 1, 3 and 5 seconds, at 480 x 832.
            random_shapes=("1x60x104", "5x60x104", "13x60x104", "21x60x104"),
        ),
        model=preset("wan2.1-t2v-1.3b"),
        mesh=MeshConfig(),
        balance=BalanceConfig(),
        shapes=ShapeRules(max_frames=81, max_pixels=480 * 832),
        flow=FlowConfig(shift=3.0),
        optimizer=OptimizerConfig(learning_rate=1e-5, num_warmup_steps=500),
        train=TrainConfig(
            num_steps=20_000,
            checkpoint_every=500,
            weights="weights/Wan2.1-T2V-1.3B-Diffusers/transformer",
        ),
        sample=SampleConfig(
            caption="a red fox runs through deep snow", shape="21x60x104", guidance=5.0
        ),
    )
