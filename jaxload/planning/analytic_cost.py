"""A model's config as the planner sees it."""

from jaxload.balance.architecture import (
    Architecture,
    CrossArchitecture,
    JointArchitecture,
    analytic_cost,
)
from jaxload.balance.cost import CostModel
from jaxload.balance.flops import Adapters
from jaxload.models import ModelConfig, WanConfig

NUM_IMAGE_TOKENS = 257
"""Of CLIP's encoder, which released models were trained with."""


def cost_of(model: ModelConfig) -> CostModel:
    """What training a model costs by its config alone, with its remat and adapters."""
    adapters = Adapters(model.lora_rank, model.lora_targets)
    return analytic_cost(
        architecture_of(model),
        remat=model.remat,
        adapters=adapters if model.lora_rank else None,
    )


def architecture_of(model: ModelConfig) -> Architecture:
    """The sizes that decide what a model costs."""
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
