"""Buckets and classes whose samples all have one shape."""

from collections.abc import Mapping

from jaxload.balance.bucket import Bucket
from jaxload.balance.form import Grid
from jaxload.balance.program import Program
from jaxload.balance.sample_class import SampleClass
from jaxload.shapes.shape import Shape


def grid_class(shape: Shape, num_samples: int) -> SampleClass:
    """Returns the class of some samples of one shape."""
    return SampleClass.of(Grid.of(shape), {shape: num_samples})


def grid_classes(counts: Mapping[Shape, int]) -> tuple[SampleClass, ...]:
    """Returns a class for each shape, by ascending tokens."""
    ordered = sorted(counts, key=lambda shape: (shape.tokens, shape))
    return tuple(grid_class(shape, counts[shape]) for shape in ordered)


def grid_bucket(program: Program, num_samples: int, cost: float = 1.0) -> Bucket:
    """Returns the bucket of a program by grid."""
    assert isinstance(program.form, Grid)
    lengths = grid_class(program.form.shape, num_samples).lengths
    return Bucket(program=program, num_samples=num_samples, lengths=lengths, cost=cost)


def shape_of(bucket: Bucket) -> Shape:
    """Returns the latent shape of every sample of a bucket."""
    assert isinstance(bucket.form, Grid)
    return bucket.form.shape
