"""Config fields that all transformers share."""

import dataclasses
import math
from typing import ClassVar, Literal, get_args, get_origin, get_type_hints

from jaxload.errors import InputError

_MAX_SIZE = 2**20  # Far above every model; larger ones come from damaged files.

TIME_WIDTH = 256
"""Width of a timestep embedding; half cosines, half sines."""

Remat = Literal["none", "attention", "full"]
"""Rematerialization policies, from most memory to least.

`none` saves the results of linear layers and attention, so that no matmul runs twice;
norms, rotations and activations are cheaper to recompute than to write and read.
`attention` saves a block's input and the result of self-attention, so that the part
quadratic in tokens runs once. `full` saves only a block's input.
"""

LoraTarget = Literal["q", "k", "v", "out", "mlp_in", "mlp_out"]
"""Projections of a block that can have a LoRA adapter."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes, dtypes and adapters; each model family adds fields of its own."""

    MAY_BE_ZERO: ClassVar[tuple[str, ...]] = ("lora_rank",)

    patch: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    """Latent frames, rows and columns per token; fixed by the model family."""

    width: int
    """Channels of each token; a multiple of num_heads. Raising it adds capacity, and
    parameters and matmul FLOPs in proportion to its square."""

    num_heads: int
    """Number of attention heads, each width / num_heads channels wide: an even number,
    6 or more. More heads at the same width cost no FLOPs but narrow each head."""

    mlp_width: int
    """Hidden channels of each block's MLP. Raising it adds capacity; parameters and
    FLOPs of the MLP grow in proportion."""

    text_dim: int
    """Channels of the text embeddings; must equal the dataset's."""

    num_text_tokens: int
    """Text tokens per sample, padded or truncated to this number. Raising it keeps more
    of long captions and costs memory and compute in every block."""

    channels: int = 16
    """Latent channels; must equal the channels of the dataset's codec."""

    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Dtype of activations and matmuls. float32 is more accurate, slower, and doubles
    the memory of activations."""

    param_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of stored parameters. bfloat16 halves their memory but loses small updates:
    use it for inference, not for training."""

    remat: Literal["none", "attention", "full", "auto"] = "none"
    """Results that a block saves for its backward pass: of linear layers and attention
    (none), of self-attention (attention), or only its input (full). Saving less takes
    less memory and recomputes more. auto: the plan chooses the fastest
    policy within the memory budget, per bucket."""

    lora_rank: int = 0
    """Rank of the LoRA adapters, which are trained instead of the model; 0 trains the
    model itself. Raising it adds capacity, parameters and optimizer memory."""

    lora_alpha: float = 16.0
    """Adapter outputs are scaled by lora_alpha / lora_rank. Raising it makes adapters
    learn faster, and training less stable."""

    lora_targets: tuple[str, ...] = ("q", "k", "v", "out")
    """Projections in each block that get an adapter: some of q, k, v, out, mlp_in,
    mlp_out. More targets add capacity, parameters and compute."""

    def __post_init__(self):
        for name, hint in get_type_hints(type(self)).items():
            value = getattr(self, name)
            least = 0 if name in self.MAY_BE_ZERO else 1
            if hint is int and (not isinstance(value, int) or value < least):
                raise InputError(
                    f"model.{name}={value!r}: expected {least} or more, a whole number"
                )
            if hint is int and value > _MAX_SIZE:
                raise InputError(
                    f"model.{name}={value}: expected at most {_MAX_SIZE:,}"
                )
            if get_origin(hint) is Literal and value not in get_args(hint):
                raise InputError(
                    f"model.{name}={value}: expected {' or '.join(get_args(hint))}"
                )
        self._check_heads()
        self._check_lora()

    @property
    def head_width(self) -> int:
        """Channels of one attention head."""
        return self.width // self.num_heads

    @property
    def num_joint_text_tokens(self) -> int:
        """Text tokens in joint attention with the latent's; 0 for cross-attention."""
        return 0

    @property
    def in_channels(self) -> int:
        """Channels of the model's input latents."""
        return self.channels

    def _check_heads(self) -> None:
        def divides(num_heads: int) -> bool:
            # At least 6: rotary embeddings need a pair of channels per axis.
            return self.width % (2 * num_heads) == 0 and self.width // num_heads >= 6

        if divides(self.num_heads):
            return
        near = sorted(
            filter(divides, range(1, self.width + 1)),
            key=lambda n: abs(n - self.num_heads),
        )
        raise InputError(
            f"model.num_heads={self.num_heads} with width={self.width}: expected heads "
            "of an even width of 6 or more; "
            + (
                f"the nearest number of heads is {near[0]}"
                if near
                else "choose a larger, even width"
            )
        )

    def _check_lora(self) -> None:
        if not 0 < self.lora_alpha < math.inf:
            raise InputError(
                f"model.lora_alpha={self.lora_alpha}: expected more than 0"
            )
        known, targets = get_args(LoraTarget), self.lora_targets
        is_tuple = isinstance(targets, tuple)  # A str is also a sequence of str.
        if not is_tuple or not targets or set(targets) - set(known):
            given = ",".join(targets) if is_tuple else repr(targets)
            raise InputError(
                f"model.lora_targets={given}: expected a tuple of some of "
                f"{', '.join(known)}"
            )
