"""Attention, partitioned by batch and heads on a mesh; one call under vmap."""

# Shape suffixes: B batch, S queries, T keys, N heads, K head width.

import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax

from jaxload.ops import _blocked_attention, _cudnn_attention
from jaxload.ops._partitioned import Partitioned, checksum

_SOURCES = checksum(
    *(
        Path(module).read_bytes()
        for module in (__file__, _blocked_attention.__file__, _cudnn_attention.__file__)
    )
)


@dataclasses.dataclass(frozen=True)
class _Pass:
    """Forward or backward pass of one shard, and the axes of its operands and results.

    The pass takes one optional last operand, the key lengths [B].
    """

    blocked: Callable[..., tuple[jax.Array, ...]]
    cudnn: Callable[..., tuple[jax.Array, ...]]
    operands: tuple[str, ...]
    results: tuple[str, ...]

    def __call__(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        call = Partitioned(
            self._local,
            (*self.operands, "B")[: len(operands)],
            self.results,
            sharded="BN",
            identity=(_SOURCES,),
            hides_explicit_axes=True,
        )
        return call(*operands)

    def _local(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Runs the pass on one device's shards, with all batch axes merged into one."""
        batch = operands[0].shape[: 1 - len(self.operands[0])]
        results = self._run(*(x.reshape(-1, *x.shape[len(batch) :]) for x in operands))
        return tuple(x.reshape(*batch, *x.shape[1:]) for x in results)

    def _run(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Runs cuDNN's kernel, or the blocked form where cuDNN has none."""
        q = operands[0]
        if not _cudnn_attention.supports(str(q.dtype), q.shape[-1]):
            return self.blocked(*operands)
        return jax.lax.platform_dependent(
            *operands, default=self.blocked, cuda=self.cudnn
        )


forward = _Pass(
    _blocked_attention.forward,
    _cudnn_attention.forward,
    operands=("BSNK", "BTNK", "BTNK"),  # q, k, v.
    results=("BSNK", "BNS"),  # out, logsumexp.
)
backward = _Pass(
    _blocked_attention.backward,
    _cudnn_attention.backward,
    # q, k, v, out, logsumexp, dout.
    operands=("BSNK", "BTNK", "BTNK", "BSNK", "BNS", "BSNK"),
    results=("BSNK", "BTNK", "BTNK"),  # dq, dk, dv.
)
