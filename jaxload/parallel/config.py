"""Config section `mesh`."""

import dataclasses
from dataclasses import field

from jaxload.balance.program import Layout
from jaxload.errors import InputError
from jaxload.fields import RESUMABLE


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How the devices of a run are divided; the sizes multiply to their number."""

    replica: int = field(default=-1, metadata=RESUMABLE)
    """Groups of devices that each hold a full copy of the model; -1: as many as the
    devices allow. More train on more samples at once, and each needs the memory."""

    fsdp: int = field(default=1, metadata=RESUMABLE)
    """Devices of a group among which parameters, optimizer state, gradients and samples
    are sharded. More fit larger models; parameters are gathered layer by layer."""

    tensor: int = field(default=1, metadata=RESUMABLE)
    """Devices that share each sample's attention heads and MLP width. More take less
    memory per sample and communicate within every layer."""

    def __post_init__(self):
        if self.replica < 1 and self.replica != -1:
            raise InputError(
                f"mesh.replica={self.replica}: expected 1 or more, or -1 for as many "
                "as the devices allow"
            )
        for name in ("fsdp", "tensor"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"mesh.{name}={getattr(self, name)}: expected 1 or more"
                )

    @property
    def devices_per_group(self) -> int:
        """Devices that hold one copy of the model."""
        return self.fsdp * self.tensor

    @property
    def layout(self) -> Layout:
        """How a group's devices share a micro-batch: each has samples of its own."""
        return Layout(batch=self.fsdp)
