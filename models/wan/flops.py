"""FLOPs of a Wan transformer."""

import dataclasses

from jaxload.balance.architecture import mlp_matrices, patch_flops, square_matrix
from jaxload.balance.flops import Flops, Matrix
from jaxload.models.transformer_config import TIME_WIDTH
from jaxload.models.wan.config import WanConfig


@dataclasses.dataclass(frozen=True)
class WanArchitecture:
    """Blocks of self-attention, cross-attention and an MLP.

    Cross-attention is to the text and, if the model takes one, to an image.
    """

    config: WanConfig

    def embeddings(self) -> Flops:
        """Returns the forward FLOPs outside of the blocks."""
        config, width = self.config, self.config.width
        text = 2 * config.num_text_tokens * width * (config.text_dim + width)
        # Time embedding: two layers, and a third for the six modulations of blocks.
        time = 2 * width * (TIME_WIDTH + 7 * width)
        image_dim = config.image_dim
        image = 2 * config.num_image_tokens * image_dim * (image_dim + width)
        channels = config.in_channels + config.channels
        patches = patch_flops(width, config.patch, channels)
        return patches + Flops(per_sample=text + time + image)

    def matrices(self) -> list[Matrix]:
        """Returns the weight matrices of all blocks."""
        width, depth = self.config.width, self.config.depth
        matrices = mlp_matrices(width, self.config.mlp_width, per_token=depth)
        # Both attentions apply q and out to the tokens. Self-attention also applies k
        # and v to the tokens; cross-attention applies its k and v to text and image.
        for target in ("q", "out"):
            matrices.append(square_matrix(width, target, per_token=2 * depth))
        for target in ("k", "v"):
            matrices.append(square_matrix(width, target, per_token=depth))
            matrices.append(
                square_matrix(
                    width,
                    target,
                    per_sample=depth * self._num_cross_keys,
                    behind_adapters=False,
                )
            )
        return matrices

    def cross_attention(self) -> Flops:
        """Returns the forward FLOPs of attention to keys outside of the sequence."""
        per_token = 4 * self._num_cross_keys * self.config.width
        return self.config.depth * Flops(per_token=per_token)

    def attention(self) -> Flops:
        """Returns the forward FLOPs of attention within the sequence."""
        return self.config.depth * Flops(per_token_squared=4 * self.config.width)

    @property
    def _num_cross_keys(self) -> int:
        return self.config.num_text_tokens + self.config.num_image_tokens
