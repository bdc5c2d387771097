"""Programs: the compile keys that plans, schedules and runs refer to."""

import dataclasses
import math
from typing import Any, Literal

from jaxload.balance.form import Form, parse_form
from jaxload.errors import InputError
from jaxload.shapes.geometry import DEFAULT, Geometry

Remat = Literal["none", "attention", "full"]
"""Remat policy: a block keeps most activations, those of attention, or its input."""

REMATS: tuple[Remat, ...] = ("none", "attention", "full")
"""Remat policies, from the fastest to the one that takes the least memory."""


@dataclasses.dataclass(frozen=True, order=True)
class Layout:
    """Division of one micro-batch among the devices of a group's fsdp axis.

    The product of the three sizes is the size of that axis. Samples are divided among
    `batch` sets of devices; the `ring` x `heads` devices of a set share each sequence.
    """

    batch: int = 1
    ring: int = 1
    heads: int = 1

    def __post_init__(self):
        if min(self.batch, self.ring, self.heads) < 1:
            raise InputError(f"layout {self}: expected sizes of 1 or more")

    @property
    def num_devices(self) -> int:
        """Size of the fsdp axis that the layout divides."""
        return self.batch * self.devices_per_sample

    @property
    def devices_per_sample(self) -> int:
        """Number of devices that share the sequence of one sample."""
        return self.ring * self.heads

    def smallest_batch(self, multiple: int = 1) -> int:
        """Returns the least multiple of `multiple` that the devices share evenly."""
        return math.lcm(self.batch, multiple)

    def __str__(self) -> str:
        return f"{self.batch}x{self.ring}x{self.heads}"


@dataclasses.dataclass(frozen=True, order=True, kw_only=True)
class Program:
    """Compile key of one micro-step, which XLA compiles once for each group."""

    form: Form
    batch: int
    """Number of samples in a replica's micro-batch, over all devices of its group."""

    layout: Layout = Layout()
    remat: Remat = "none"

    def __post_init__(self):
        if self.remat not in REMATS:
            raise InputError(
                f"program {self.form}@{self.batch}: remat={self.remat!r}: expected one "
                f"of {', '.join(REMATS)}"
            )
        if self.batch < 1 or self.batch % self.layout.batch:
            unit = self.layout.batch
            nearest = max(1, round(self.batch / unit)) * unit
            raise InputError(
                f"program {self.form}@{self.batch}: {self.layout.batch} devices of a "
                f"group cannot share {self.batch} samples evenly; expected a multiple "
                f"of {self.layout.batch}, such as {nearest}"
            )

    @property
    def tokens(self) -> int:
        """Sequence length of one sample after the patch embedding, without text."""
        return self.form.tokens

    @property
    def samples_per_device(self) -> int:
        """Number of samples that each device holds, whole or in part."""
        return self.batch // self.layout.batch

    @property
    def tokens_per_device(self) -> int:
        """Number of tokens that each device holds."""
        tokens = self.samples_per_device * self.tokens
        return tokens // self.layout.devices_per_sample

    def resized(self, batch: int) -> "Program":
        """Returns the program with another batch size."""
        return dataclasses.replace(self, batch=batch)

    def to_dict(self) -> dict[str, Any]:
        """Returns the program as JSON values; the default geometry is left out."""
        geometry = self.form.geometry
        other = {} if geometry == DEFAULT else {"geometry": geometry.to_dict()}
        return other | {
            "form": str(self.form),
            "batch": self.batch,
            "layout": dataclasses.asdict(self.layout),
            "remat": self.remat,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Program":
        """Builds a program from the result of `to_dict`, also of earlier versions."""
        geometry = Geometry.from_dict(content.get("geometry", DEFAULT.to_dict()))
        return cls(
            form=parse_form(content["form"], geometry),
            batch=content["batch"],
            layout=Layout(**content["layout"]),
            remat=content["remat"],
        )

    def __str__(self) -> str:
        remat = "" if self.remat == "none" else f" remat={self.remat}"
        layout = "" if self.layout.num_devices == 1 else f" on {self.layout}"
        return f"{self.form}@{self.batch}{layout}{remat}"
