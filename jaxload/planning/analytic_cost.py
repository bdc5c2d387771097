"""Analytic cost of a model: FLOPs of its matmuls, from its config."""

from jaxload.balance.architecture import (
    Architecture,
    CrossArchitecture,
    JointArchitecture,
    analytic_law,
)
from jaxload.balance.cost import CostLaw, CostModel
from jaxload.balance.flops import Adapters
from jaxload.balance.program import REMATS, Remat
from jaxload.models import ModelConfig, WanConfig

NUM_IMAGE_TOKENS = 257
"""Image tokens of CLIP's encoder, which the released models were trained with."""


def analytic_cost(model: ModelConfig, *, num_devices: int = 1) -> CostModel:
    """Returns the FLOPs of training a model, from its config alone.

    Args:
        model: Config of the model and its adapters; every remat policy is priced.
        num_devices: Devices that share each sample (the mesh's tensor axis).
    """
    adapters = Adapters(model.lora_rank, model.lora_targets)
    architecture = architecture_of(model)
    laws: dict[Remat, CostLaw] = {
        remat: analytic_law(
            architecture, remat=remat, adapters=adapters if model.lora_rank else None
        ).scaled(1 / num_devices)
        for remat in REMATS
    }
    trained = f", of adapters of rank {model.lora_rank}" if model.lora_rank else ""
    return CostModel(
        laws=laws,
        unit="FLOP",
        source=f"analytic: matmuls, forward and backward{trained}",
    )


def architecture_of(model: ModelConfig) -> Architecture:
    """Returns the sizes of a model that decide its cost."""
    if isinstance(model, WanConfig):
        return CrossArchitecture(
            width=model.width,
            depth=model.depth,
            mlp_width=model.mlp_width,
            num_text_tokens=model.num_text_tokens,
            text_dim=model.text_dim,
            channels=model.channels,
            condition_channels=model.condition_channels,
            image_dim=model.image_dim,
            num_image_tokens=model.num_image_positions or NUM_IMAGE_TOKENS
            if model.image_dim
            else 0,
        )
    return JointArchitecture(
        width=model.width,
        num_double_blocks=model.num_double_blocks,
        num_single_blocks=model.num_single_blocks,
        num_refiner_blocks=model.num_refiner_blocks,
        mlp_width=model.mlp_width,
        num_text_tokens=model.num_text_tokens,
        text_dim=model.text_dim,
        pooled_dim=model.pooled_dim,
        guidance=model.guidance,
        channels=model.channels,
    )
