"""Programs: what XLA compiles once, and what a plan, a schedule and a run count in."""

import dataclasses
import math
from typing import Any, Literal

from jaxload.errors import InputError
from jaxload.shapes.shape import Shape

Remat = Literal["none", "attention", "full"]
"""Activations that a block keeps for its backward pass: most, attention, or input."""

REMATS: tuple[Remat, ...] = ("none", "attention", "full")
"""From the fastest, which takes the most memory, to the smallest."""


@dataclasses.dataclass(frozen=True, order=True)
class Grid:
    """Form of a micro-batch whose samples all have one latent shape."""

    frames: int
    height: int
    width: int

    @classmethod
    def of(cls, shape: Shape) -> "Grid":
        """Returns the form of samples of this shape."""
        return cls(shape.frames, shape.height, shape.width)

    @property
    def shape(self) -> Shape:
        """Latent shape of every sample."""
        return Shape(self.frames, self.height, self.width)

    @property
    def tokens(self) -> int:
        """Tokens of every sample."""
        return self.shape.tokens

    def __str__(self) -> str:
        return str(self.shape)


@dataclasses.dataclass(frozen=True, order=True)
class Layout:
    """Division of one micro-batch among the devices of a group's fsdp axis.

    The three sizes multiply to that axis. `batch` devices hold samples of their own;
    within each of these, `ring` x `heads` devices share the sequence of a sample.
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
        """Devices that share the sequence of one sample."""
        return self.ring * self.heads

    def smallest_batch(self, multiple: int = 1) -> int:
        """Returns the least multiple of `multiple` that the devices share evenly."""
        return math.lcm(self.batch, multiple)

    def __str__(self) -> str:
        return f"{self.batch}x{self.ring}x{self.heads}"


@dataclasses.dataclass(frozen=True, order=True, kw_only=True)
class Program:
    """The compile key: one micro-step that XLA compiles once for each group."""

    form: Grid
    batch: int
    """Samples of the replica's micro-batch, over all devices of its group."""

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
        """Tokens of one sample."""
        return self.form.tokens

    @property
    def samples_per_device(self) -> int:
        """Samples that each device has a part of."""
        return self.batch // self.layout.batch

    @property
    def tokens_per_device(self) -> int:
        """Tokens that each device holds."""
        tokens = self.samples_per_device * self.tokens
        return tokens // self.layout.devices_per_sample

    def resized(self, batch: int) -> "Program":
        """Returns the program with another batch."""
        return dataclasses.replace(self, batch=batch)

    def to_dict(self) -> dict[str, Any]:
        """Returns the program as JSON can hold it."""
        return {
            "form": str(self.form),
            "batch": self.batch,
            "layout": dataclasses.asdict(self.layout),
            "remat": self.remat,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Program":
        """Builds a program from what `to_dict` returned."""
        return cls(
            form=Grid.of(Shape.parse(content["form"])),
            batch=content["batch"],
            layout=Layout(**content["layout"]),
            remat=content["remat"],
        )

    def __str__(self) -> str:
        remat = "" if self.remat == "none" else f" remat={self.remat}"
        layout = "" if self.layout.num_devices == 1 else f" on {self.layout}"
        return f"{self.form}@{self.batch}{layout}{remat}"
