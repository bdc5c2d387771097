"""Config of a Wan transformer."""

import dataclasses
from typing import ClassVar, Literal

from jaxload.errors import InputError
from jaxload.models.transformer_config import TransformerConfig

NUM_IMAGE_TOKENS = 257
"""Image tokens of CLIP's encoder, which the released models were trained with."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WanConfig(TransformerConfig):
    """Sizes of a Wan transformer, which must match the weights that it loads."""

    MAY_BE_ZERO: ClassVar[tuple[str, ...]] = (
        *TransformerConfig.MAY_BE_ZERO,
        "condition_channels",
        "image_dim",
        "num_image_positions",
    )

    kind: Literal["wan"] = "wan"
    """Model family; selects the transformer that is built."""

    depth: int
    """Number of blocks. More adds capacity; parameters, compute and saved activations
    grow in proportion."""

    condition_channels: int = 0
    """Input channels beyond the latent's: 20 for image-to-video (a mask of 4 and the
    first frame's latent of 16), 0 for text-to-video."""

    image_dim: int = 0
    """Channels of the image embeddings that image-to-video attends to; 0 for none."""

    num_image_positions: int = 0
    """Image tokens with a learned position embedding; 0 adds no position embedding."""

    def __post_init__(self):
        super().__post_init__()
        if self.num_image_positions and not self.image_dim:
            raise InputError(
                f"model.num_image_positions={self.num_image_positions}: expected 0 "
                "without image_dim; set model.image_dim too"
            )

    @property
    def in_channels(self) -> int:
        """Channels of the model's input: of the latent and of the condition."""
        return self.channels + self.condition_channels

    @property
    def num_image_tokens(self) -> int:
        """Image tokens per sample; 0 for a model that takes no image."""
        if not self.image_dim:
            return 0
        return self.num_image_positions or NUM_IMAGE_TOKENS
