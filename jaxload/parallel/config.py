"""Config section `mesh`."""

import dataclasses
from dataclasses import field

from jaxload.balance.program import Layout
from jaxload.errors import InputError
from jaxload.fields import RESUMABLE


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Sizes of the device mesh; their product is the number of devices."""

    replica: int = field(default=-1, metadata=RESUMABLE)
    """Number of groups of devices that each hold a full copy of the model; -1: as many
    as the devices allow. Raising it trains on more samples at once, but leaves fewer
    devices to share the memory of each copy."""

    fsdp: int = field(default=1, metadata=RESUMABLE)
    """Devices of a group that shard parameters, optimizer state, gradients and samples.
    Raising it takes less memory per device and communicates more: the parameters of a
    layer are gathered when the layer runs."""

    tensor: int = field(default=1, metadata=RESUMABLE)
    """Devices that share each sample's attention heads and MLP width. Raising it takes
    less memory per sample and communicates more within every layer."""

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
        """Number of devices that hold one copy of the model."""
        return self.fsdp * self.tensor

    @property
    def layout(self) -> Layout:
        """Layout of a micro-batch: samples are divided over the fsdp axis."""
        return Layout(batch=self.fsdp)
