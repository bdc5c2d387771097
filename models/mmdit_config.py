"""The sizes of an MMDiT."""

import dataclasses
import math
from typing import Literal

from jaxload.errors import InputError
from jaxload.models.transformer_config import PATCH, TransformerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MMDiTConfig(TransformerConfig):
    """Sizes of an MMDiT."""

    kind: Literal["mmdit"] = "mmdit"
    """The kind of transformer."""

    num_double_blocks: int
    """Blocks in which text and video have weights of their own."""

    num_single_blocks: int
    """Blocks after them, in which they share weights."""

    num_refiner_blocks: int = 2
    """Blocks that the text runs through alone, before all others."""

    pooled_dim: int
    """Width of the pooled text; as text_dim, it can be pooled of the text itself."""

    guidance: bool = False
    """Whether a distilled model is told how strongly to follow the text."""

    rope_theta: float = 256.0
    """The longest period of the rotations, in tokens over 2 pi."""

    rope_widths: tuple[int, ...] = (16, 56, 56)
    """Channels of a head that turn with frames, rows and columns."""

    @property
    def num_joint_text_tokens(self) -> int:
        """Text tokens that attend together with those of the latent: all of them."""
        return self.num_text_tokens

    def __post_init__(self):
        super().__post_init__()
        if (
            len(self.rope_widths) != len(PATCH)
            or sum(self.rope_widths) != self.head_width
            or any(width < 2 or width % 2 for width in self.rope_widths)
        ):
            raise InputError(
                f"model.rope_widths={','.join(map(str, self.rope_widths))}: expected "
                f"three even numbers that add up to the width of a head, "
                f"{self.head_width}"
            )
        if not 1 < self.rope_theta < math.inf:
            raise InputError(
                f"model.rope_theta={self.rope_theta}: expected more than 1"
            )
