"""Classes of a plan: which samples run in the programs of which form."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from jaxload.balance.config import BalanceConfig
from jaxload.balance.cost import CostModel
from jaxload.balance.form import Form, Length
from jaxload.balance.grids import choose_grids
from jaxload.balance.lengths import choose_lengths
from jaxload.balance.sample_class import SampleClass, assign_forms, make_classes
from jaxload.errors import InputError
from jaxload.models.embeddings import MAX_POSITION
from jaxload.planning.samples import Samples
from jaxload.shapes.cover import LeftOut
from jaxload.shapes.shape import Shape

TOO_LONG = "longer than the memory allows"

_COMPILE_SECONDS = 20.0  # About what a program of a large model takes for H100s.
_EPOCHS = 10  # Passes over the data that share the time of a compile.
_FLOPS_PER_SECOND = 4e14  # Of a device, for costs that are not timed.
# Share of an epoch that a program has to save at least, and at most. Fewer programs
# also mix more shapes in a step; more than 0.15% of padding is not worth that.
_LEAST_PRICE, _MOST_PRICE = 5e-4, 1.5e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classes:
    """Samples by form, and what they keep."""

    classes: tuple[SampleClass, ...]
    """Samples of each form, by ascending tokens; every form has some."""

    left_out: tuple[LeftOut, ...]
    kept: float
    """Content kept, as a share of the content that all candidate sizes would keep.
    Samples that are cut are taken to lose content in proportion to their tokens."""

    num_cut: int
    """Number of samples that run only by their first latent frames."""


def classes_by_grid(
    samples: Samples, config: BalanceConfig, *, min_samples: int
) -> Classes:
    """Chooses at most `balance.max_buckets` shapes of at least `min_samples` samples.

    Raises:
        InputError: No shape has enough samples.
    """
    counts = samples.counts
    grids = choose_grids(
        counts,
        max_grids=config.max_buckets,
        min_samples=min_samples,
        may_cut=samples.may_cut,
    )
    if not grids:
        raise InputError(
            f"no shape has {min_samples} samples, one batch for each replica; the "
            f"largest count is {max(counts.values())}; use fewer replicas, a smaller "
            "mesh.fsdp or balance.batch_multiple, or more data"
        )
    found = assign_forms(counts, grids, may_cut=samples.may_cut)
    missing = [shape for shape in sorted(counts) if shape not in found]
    rare = [shape for shape in missing if counts[shape] < min_samples]
    common = [shape for shape in missing if counts[shape] >= min_samples]
    return classes_of(
        samples,
        grids,
        left_out=(
            (f"fewer than {min_samples} samples, a batch for each replica", rare),
            (
                f"not among the {config.max_buckets} shapes with the most content",
                common,
            ),
        ),
    )


def classes_by_length(
    samples: Samples,
    config: BalanceConfig,
    costs: CostModel,
    *,
    num_devices: int,
    min_samples: int,
    longest_row: int,
    multiple: int,
) -> Classes:
    """Chooses at most `balance.max_buckets` lengths, none above `longest_row`.

    Args:
        samples: Samples by shape.
        config: Section `balance`.
        costs: Cost model.
        num_devices: Devices that divide the samples: replicas, times those of each.
        min_samples: Fewest samples of a class.
        longest_row: Most tokens of a row.
        multiple: Number of tokens that every length is a multiple of.

    Raises:
        InputError: No sample is within `longest_row`, or too few are.
    """
    counts = samples.counts
    longest = Length(max(1, longest_row // multiple) * multiple, samples.geometry)
    runs: dict[Shape, int] = {}
    found = assign_forms(counts, [longest], may_cut=samples.may_cut)
    for shape, (_, cut) in found.items():
        runs[cut] = runs.get(cut, 0) + counts[shape]
    if not runs:
        fewest = min(shape.tokens for shape in counts)
        raise InputError(
            f"no sample has at most {longest.tokens:,} tokens, the "
            f"longest row that the memory allows; the shortest has {fewest:,}; raise "
            "the memory budget, prepare smaller clips (shapes.max_frames and "
            "shapes.max_pixels), or shard the model over more devices (mesh.fsdp)"
        )
    law = next(iter(costs.laws.values()))

    def price(tokens: np.ndarray, length: np.ndarray) -> np.ndarray:
        return np.asarray(law.sample(tokens, length if costs.skips_padding else tokens))

    lengths = choose_lengths(
        runs,
        price,
        max_lengths=config.max_buckets,
        min_samples=min_samples,
        program_price=_program_price(runs, costs, num_devices),
        multiple=multiple,
    )
    missing = [shape for shape in sorted(counts) if shape not in found]
    return classes_of(samples, lengths, left_out=((TOO_LONG, missing),))


def shortest_run(samples: Samples) -> int:
    """Returns the tokens of the shortest sample, which may be cut to two frames."""
    return min(
        shape.first_frames(2).tokens
        if samples.may_cut and shape.frames > 1
        else shape.tokens
        for shape in samples.cover.shapes
    )


def _program_price(
    counts: Mapping[Shape, int], costs: CostModel, num_devices: int
) -> float:
    """Returns the time to compile a program, as a share of the time of an epoch."""
    law = next(iter(costs.laws.values()))
    work = sum(n * float(law.sample(shape.tokens)) for shape, n in counts.items())
    seconds = work if costs.unit == "s" else work / _FLOPS_PER_SECOND
    share = _COMPILE_SECONDS / _EPOCHS * num_devices / seconds
    return min(max(share, _LEAST_PRICE), _MOST_PRICE)


def _check_positions(shapes: Iterable[Shape]) -> None:
    """Refuses shapes with more tokens along an axis than rows of any length may have.

    Raises:
        InputError: The message names the shape.
    """
    for shape in shapes:
        if max(shape.token_grid) > MAX_POSITION:
            raise InputError(
                f"shape {shape}: expected at most {MAX_POSITION} tokens along each "
                f"axis, got {max(shape.token_grid)}; use smaller clips "
                "(shapes.max_frames, shapes.max_pixels), or set balance.form=grid"
            )


def classes_of(
    samples: Samples,
    forms: Sequence[Form],
    *,
    left_out: Sequence[tuple[str, Sequence[Shape]]],
) -> Classes:
    """Assigns samples to forms, each of which gets some.

    Args:
        samples: Samples by shape.
        forms: Forms.
        left_out: Shapes of samples that no form takes, by reason.

    Raises:
        InputError: A sample has too many tokens along an axis for a row.
    """
    counts = samples.counts
    by_form = make_classes(counts, forms, may_cut=samples.may_cut)
    classes = tuple(c for c in by_form if c is not None)
    assigned = assign_forms(counts, forms, may_cut=samples.may_cut)
    if any(isinstance(form, Length) for form in forms):
        _check_positions(runs for _, runs in assigned.values())
    own = sum(n * shape.tokens for shape, n in counts.items())
    return Classes(
        classes=classes,
        left_out=(
            *samples.cover.left_out,
            *(
                _describe_left_out(reason, counts, shapes)
                for reason, shapes in left_out
                if shapes
            ),
        ),
        kept=samples.cover.kept * sum(c.num_tokens for c in classes) / own,
        num_cut=sum(
            counts[shape] for shape, (_, runs) in assigned.items() if runs != shape
        ),
    )


def _describe_left_out(
    reason: str, counts: Mapping[Shape, int], shapes: Sequence[Shape]
) -> LeftOut:
    """Counts the samples of some shapes, with the most frequent ones as examples."""
    common = sorted(shapes, key=lambda shape: -counts[shape])[:3]
    return LeftOut(
        reason=reason,
        count=sum(counts[shape] for shape in shapes),
        examples=tuple(f"{shape} ({counts[shape]})" for shape in common),
    )
