"""What the configurations of all transformers have in common."""

import dataclasses
import math
from typing import ClassVar, Literal, get_args, get_origin, get_type_hints

from jaxload.errors import InputError

PATCH = (1, 2, 2)
"""Frames, rows and columns of a latent that one token covers."""

Remat = Literal["none", "attention", "full"]
"""Policies by name, from most memory to least:

`none` keeps the results of linear layers and attention, so that no matmul runs twice;
norms, rotations and activations are cheaper to compute again than to write and read.
`attention` keeps a block's input and the result of attention among all tokens, so that
the part that is quadratic in them runs once. `full` keeps a block's input alone.
"""

LoraTarget = Literal["q", "k", "v", "out", "mlp_in", "mlp_out"]
"""Projections of a block that a LoRA may be put on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes, types and adapters; each kind of transformer adds its own."""

    MAY_BE_ZERO: ClassVar[tuple[str, ...]] = ("lora_rank",)

    width: int
    """Model width; a multiple of num_heads."""

    num_heads: int
    """Attention heads; each is width / num_heads wide, an even number."""

    mlp_width: int
    """Hidden width of each block's MLP."""

    text_dim: int
    """Width of the text embeddings; the data set must have the same."""

    num_text_tokens: int
    """Text tokens that each sample is padded to."""

    channels: int = 16
    """Latent channels; the codec of the data set must have the same."""

    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of activations and matmuls."""

    param_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type that parameters are kept in; bfloat16 is for running, not for training."""

    remat: Literal["none", "attention", "full", "auto"] = "none"
    """Results that a block keeps for its backward pass: most (none), its attention, or
    its input alone (full); less memory, and more computed twice. auto: the fastest that
    fits, chosen per bucket by the plan."""

    lora_rank: int = 0
    """Rank of the adapters that are trained in place of the model; 0 for none."""

    lora_alpha: float = 16.0
    """Strength of the adapters: they count alpha / rank times."""

    lora_targets: tuple[str, ...] = ("q", "k", "v", "out")
    """Projections of every block that get an adapter."""

    def __post_init__(self):
        for name, hint in get_type_hints(type(self)).items():
            value = getattr(self, name)
            least = 0 if name in self.MAY_BE_ZERO else 1
            if hint is int and (not isinstance(value, int) or value < least):
                raise InputError(
                    f"model.{name}={value!r}: expected {least} or more, a whole number"
                )
            if get_origin(hint) is Literal and value not in get_args(hint):
                raise InputError(
                    f"model.{name}={value}: expected {' or '.join(get_args(hint))}"
                )
        self._check_heads()
        self._check_lora()

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.num_heads

    @property
    def num_joint_text_tokens(self) -> int:
        """Text tokens that attend together with those of the latent."""
        return 0

    @property
    def in_channels(self) -> int:
        """Channels of what goes into the model."""
        return self.channels

    def _check_heads(self) -> None:
        def divides(num_heads: int) -> bool:
            # Six: a pair of channels to rotate along each of frames, height and width.
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
        is_tuple = isinstance(targets, tuple)  # The letters of a text would pass too.
        if not is_tuple or not targets or set(targets) - set(known):
            given = ",".join(targets) if is_tuple else repr(targets)
            raise InputError(
                f"model.lora_targets={given}: expected a tuple of some of "
                f"{', '.join(known)}"
            )
