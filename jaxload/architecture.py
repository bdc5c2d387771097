"""A model's config as the planner sees it."""

from jaxload.balance.architecture import (
    Architecture,
    CrossArchitecture,
    JointArchitecture,
)
from jaxload.models import ModelConfig, WanConfig


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
