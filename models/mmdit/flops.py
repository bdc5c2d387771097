"""FLOPs of an MMDiT."""

import dataclasses

from jaxload.balance.architecture import mlp_matrices, patch_flops, square_matrix
from jaxload.balance.flops import Flops, Matrix
from jaxload.models.mmdit.config import MMDiTConfig
from jaxload.models.transformer_config import TIME_WIDTH


@dataclasses.dataclass(frozen=True)
class MMDiTArchitecture:
    """Attention over text and latent tokens as one sequence.

    Double blocks have separate weights for text and latent tokens; single blocks share
    one set. Refiner blocks process only the text.
    """

    config: MMDiTConfig

    def embeddings(self) -> Flops:
        """Returns the forward FLOPs outside of the blocks."""
        config, width = self.config, self.config.width
        text = 2 * config.num_text_tokens * width * config.text_dim
        time = 2 * width * (TIME_WIDTH + width)
        pooled = 2 * width * (config.pooled_dim + config.text_dim + 2 * width)
        head = 4 * width**2
        # Time is embedded twice, for the blocks and for the refiner; guidance is
        # embedded like time.
        conditions = (3 if config.guidance else 2) * time + pooled + head
        patches = patch_flops(width, config.patch, 2 * config.channels)
        return patches + Flops(per_sample=text + conditions)

    def matrices(self) -> list[Matrix]:
        """Returns the weight matrices of all blocks."""
        config = self.config
        width, mlp_width, text = config.width, config.mlp_width, config.num_text_tokens
        double, single = config.num_double_blocks, config.num_single_blocks
        both = {"per_token": double + single, "per_sample": text * (double + single)}
        matrices = [square_matrix(width, target, **both) for target in ("q", "k", "v")]
        in_double = {"per_token": double, "per_sample": text * double}
        matrices.append(square_matrix(width, "out", **in_double))
        matrices += mlp_matrices(width, mlp_width, **in_double)
        # Single blocks fuse `out` with the second matrix of the MLP.
        in_single = {"per_token": single, "per_sample": text * single}
        hidden, out = mlp_matrices(width, mlp_width, **in_single)
        rows = width + mlp_width
        matrices += [hidden, dataclasses.replace(out, rows=rows, target="out")]
        # Twelve modulations per double block and three per single block. Each refiner
        # block has q, k, v, out, an MLP four times as wide, and two modulations.
        refiner = config.num_refiner_blocks
        num_vectors = 12 * double + 3 * single + (12 * text + 2) * refiner
        others = square_matrix(
            width, None, per_sample=num_vectors, behind_adapters=False
        )
        return [*matrices, others]

    def cross_attention(self) -> Flops:
        """Returns the forward FLOPs of attention to keys outside of the sequence."""
        return Flops()

    def attention(self) -> Flops:
        """Returns the forward FLOPs of attention within the sequence."""
        config, text = self.config, self.config.num_text_tokens
        num_blocks = config.num_double_blocks + config.num_single_blocks
        per_pair = 4 * config.width
        return num_blocks * Flops(
            per_sample=per_pair * text**2,
            per_token=2 * per_pair * text,
            per_token_squared=per_pair,
        ) + Flops(per_sample=config.num_refiner_blocks * per_pair * text**2)
