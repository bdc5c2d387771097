"""Config sections `train`, `optimizer` and `flow`."""

import dataclasses
from dataclasses import field
from typing import Literal

from jaxload.errors import InputError
from jaxload.fields import RESUMABLE
from jaxload.seed import check_seed


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Length of a run, its initial weights, and how often it logs and saves."""

    num_steps: int = field(metadata=RESUMABLE)
    """Number of optimizer updates of the whole run."""

    seed: int = 0
    """Seed, 0 to 2^32 - 1, of the initial parameters, sample order and noise."""

    accumulate: int = 1
    """Gradient accumulation: micro-batches per replica and step, or compute budgets if
    balance.policy=mixed. Raising it averages the gradient over more samples in the same
    memory, and makes each step longer."""

    log_every: int = field(default=20, metadata=RESUMABLE)
    """Steps between two lines of the log. Raising it makes the log shorter and less
    detailed. A terminal shows every step."""

    checkpoint_every: int = field(default=100, metadata=RESUMABLE)
    """Steps between two checkpoints. Raising it writes less often and loses more steps
    in a crash. The last step always has a checkpoint."""

    keep_checkpoints: int = field(default=2, metadata=RESUMABLE)
    """Number of newest checkpoints kept on disk; older ones are deleted. Raising it
    keeps more earlier states and takes more disk space."""

    weights: str = ""
    """Safetensors file or directory of the initial weights. If empty, parameters are
    random."""

    def __post_init__(self):
        for option in dataclasses.fields(self):
            if option.name in ("weights", "seed"):
                continue
            value = getattr(self, option.name)
            if value < 1:
                raise InputError(f"train.{option.name}={value}: expected 1 or more")
        check_seed(self.seed, f"train.seed={self.seed}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParamGroup:
    """Learning rate and weight decay of the parameters whose names match a pattern."""

    pattern: str
    """Glob over dotted parameter names such as `blocks.self_attention.q.kernel`; `*`
    also matches dots."""

    learning_rate: float = -1.0
    """Learning rate after the warm-up; -1 takes optimizer.learning_rate. All groups
    share the warm-up. 0 freezes the parameters, but saves no memory, and their
    gradients still count in the gradient norm."""

    weight_decay: float = -1.0
    """AdamW's weight decay of the group's matrices; higher keeps them closer to 0. -1
    takes optimizer.weight_decay."""

    def __post_init__(self):
        if not self.pattern:
            raise InputError(
                "optimizer.groups: expected a pattern, got an empty one; '*' matches "
                "every parameter"
            )
        for name in ("learning_rate", "weight_decay"):
            value = getattr(self, name)
            if value < 0 and value != -1:
                raise InputError(
                    f"optimizer.groups, pattern {self.pattern!r:.80}: {name}={value}: "
                    f"expected 0 or more, or -1 for optimizer.{name}"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW with learning-rate warm-up and gradient clipping."""

    learning_rate: float
    """Learning rate after the warm-up, constant from then on; higher trains faster and
    may diverge."""

    num_warmup_steps: int = 0
    """Steps over which the learning rate rises linearly. Raising it makes the start of
    training more stable and slower."""

    weight_decay: float = 0.01
    """AdamW's weight decay of matrices; higher regularizes more and holds the weights
    closer to 0. Biases, norms and modulations have none."""

    beta1: float = 0.9
    """Decay of the running mean of gradients, per step; higher averages over more steps
    and reacts more slowly."""

    beta2: float = 0.99
    """Decay of the running mean of squared gradients, per step; higher averages over
    more steps and reacts more slowly."""

    max_grad_norm: float = 1.0
    """Norm to which larger gradients of a step are scaled down; higher clips less often
    and lets outliers move the weights further."""

    groups: tuple[ParamGroup, ...] = ()
    """Groups of parameters with their own learning rate or weight decay; the first
    pattern that matches a parameter's name wins."""

    def __post_init__(self):
        for name in ("learning_rate", "max_grad_norm"):
            if getattr(self, name) <= 0:
                raise InputError(
                    f"optimizer.{name}={getattr(self, name)}: expected more than 0"
                )
        for name in ("num_warmup_steps", "weight_decay"):
            if getattr(self, name) < 0:
                raise InputError(
                    f"optimizer.{name}={getattr(self, name)}: expected 0 or more"
                )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(
                    f"optimizer.{name}={getattr(self, name)}: expected 0 or more and "
                    "less than 1"
                )
        patterns = [group.pattern for group in self.groups]
        for pattern in patterns:
            if patterns.count(pattern) > 1:
                raise InputError(
                    f"optimizer.groups: pattern {pattern!r:.80}: expected it once, got "
                    f"it {patterns.count(pattern)} times; keep one"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlowConfig:
    """Noise levels and conditioning of the flow-matching loss."""

    sigma_sampler: Literal["uniform", "logit_normal"] = "logit_normal"
    """Distribution of the noise level in [0, 1], before the shift: uniform, or
    logit_normal, which trains more on medium noise."""

    shift: float = 1.0
    """Shift s of the noise level, s*sigma / (1 + (s-1)*sigma); 1 is none. Higher trains
    and samples more at high noise, as long sequences need, and less at low noise."""

    caption_dropout: float = 0.1
    """Share of samples, 0 to 1, trained without their caption, as guidance requires.
    Raising it trains the model less on captions."""

    def __post_init__(self):
        if self.shift <= 0:
            raise InputError(f"flow.shift={self.shift}: expected a positive number")
        if not 0 <= self.caption_dropout <= 1:
            raise InputError(
                f"flow.caption_dropout={self.caption_dropout}: expected 0 to 1"
            )
