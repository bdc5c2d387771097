"""The sizes of a Wan transformer."""

import dataclasses
from typing import ClassVar, Literal

from jaxload.errors import InputError
from jaxload.models.transformer_config import TransformerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class WanConfig(TransformerConfig):
    """Sizes of a Wan transformer."""

    MAY_BE_ZERO: ClassVar[tuple[str, ...]] = (
        *TransformerConfig.MAY_BE_ZERO,
        "condition_channels",
        "image_dim",
        "num_image_positions",
    )

    kind: Literal["wan"] = "wan"
    """The kind of transformer."""

    depth: int
    """Number of blocks."""

    condition_channels: int = 0
    """Channels beside the latent's: of image-to-video 20, a mask and a first frame."""

    image_dim: int = 0
    """Width of the image embeddings that image-to-video attends to; 0 without."""

    num_image_positions: int = 0
    """Image tokens that have a place of their own; 0 where their order is not told."""

    def __post_init__(self):
        super().__post_init__()
        if self.num_image_positions and not self.image_dim:
            raise InputError(
                f"model.num_image_positions={self.num_image_positions}: expected 0 "
                "without image_dim; set model.image_dim too"
            )

    @property
    def in_channels(self) -> int:
        """Channels of what goes into the model."""
        return self.channels + self.condition_channels
