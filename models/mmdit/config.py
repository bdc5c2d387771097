"""Config of an MMDiT."""

import dataclasses
import math
from typing import Literal

from jaxload.errors import InputError
from jaxload.models.transformer_config import TransformerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MMDiTConfig(TransformerConfig):
    """Sizes of an MMDiT, which must match the weights that it loads."""

    kind: Literal["mmdit"] = "mmdit"
    """Model family; selects the transformer that is built."""

    num_double_blocks: int
    """Number of blocks with separate weights for text and video. More adds capacity and
    costs compute and memory; each has more than twice a single block's parameters."""

    num_single_blocks: int
    """Number of blocks, after the double blocks, in which text and video share weights.
    More adds capacity; parameters and compute grow in proportion."""

    num_refiner_blocks: int = 2
    """Number of blocks that process only the text, before all others. More refines the
    text further at little compute, since text is short."""

    pooled_dim: int
    """Channels of the pooled text embedding. If equal to text_dim, the mean of the text
    tokens is used when no pooled embedding is given."""

    guidance: bool = False
    """True for guidance-distilled models, which take the guidance scale as an input."""

    rope_theta: float = 256.0
    """Base of the rotary frequencies; periods are 2 pi to 2 pi rope_theta tokens.
    Raising it distinguishes positions in longer clips, at a coarser resolution."""

    rope_widths: tuple[int, ...] = (16, 56, 56)
    """Channels of a head that rotate with frames, rows and columns: even numbers that
    sum to the head width. More channels resolve positions along that axis better."""

    @property
    def num_joint_text_tokens(self) -> int:
        """Text tokens in joint attention with the latent's: all of them."""
        return self.num_text_tokens

    def __post_init__(self):
        super().__post_init__()
        if (
            len(self.rope_widths) != len(self.patch)
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
