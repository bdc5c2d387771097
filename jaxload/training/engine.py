"""The engine: runs local programs on each group, and one global update per step."""

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxload.balance.program import Program
from jaxload.parallel.placement import Group, Placement
from jaxload.training.step import Sums, TrainState

MicroStep = Callable[[Any, Any, Sums, Mapping[str, jax.Array]], tuple[Sums, jax.Array]]
"""(step, model, sums, batch) -> (sums, loss), compiled for one group."""

Update = Callable[[TrainState, Sums], tuple[TrainState, Sums, dict[str, jax.Array]]]
"""(state without frozen parameters, sums) -> (state, zero sums, scalars)."""

MAX_QUEUED = 2
"""Maximum micro-batches queued on a group's devices behind the running one. The first
hides the copy to the device, the second hides delays of the loop. Each takes the memory
of a batch."""


class Engine:
    """Holds the training state of a run and advances it, for any policy.

    Each group runs micro-steps on its own mesh, with views of the state and of its part
    of the sums. Micro-steps do not communicate with other groups. The update runs on
    the global mesh. A view shares the buffers of its array, and donating the array
    invalidates the view, so views are taken again after each update. Frozen parameters
    are never donated, and their views are taken once.
    """

    def __init__(
        self,
        placement: Placement,
        micro_steps: Mapping[tuple[int, Program], MicroStep],
        update: Update,
        state: TrainState,
        sums: Sums,
    ):
        """Takes over the state and the sums, whose arrays the engine will donate.

        Args:
            placement: Placement of the state and the sums.
            micro_steps: Compiled micro-steps, by group index and program.
            update: Compiled update.
            state: Training state on the global mesh.
            sums: Zero sums on the global mesh.
        """
        self._placement = placement
        self._micro_steps = micro_steps
        self._update = update
        self._frozen = {
            group.index: placement.state_view(state.frozen, group)
            for group in placement.local_groups
        }
        self._state = state
        self._unfinished: dict[int, collections.deque[jax.Array]] = {
            group.index: collections.deque() for group in placement.local_groups
        }
        self._take_views(sums)

    @property
    def state(self) -> TrainState:
        """Training state on the global mesh, valid until the next update."""
        return self._state

    def micro_step(
        self, group: Group, program: Program, batch: Mapping[str, np.ndarray]
    ) -> None:
        """Copies a micro-batch to a local group and starts the micro-step.

        Waits for earlier micro-steps until at most MAX_QUEUED are unfinished, so that
        the next call leaves at most MAX_QUEUED micro-batches behind a running one.
        """
        index, arrays = group.index, group.place_batch(batch)
        step, params = self._views[index]
        self._sums[index], loss = self._micro_steps[index, program](
            step, (params, self._frozen[index]), self._sums[index], arrays
        )
        unfinished = self._unfinished[index]
        unfinished.append(loss)
        # Waits here, not before the copy, so that the next batch is copied at once.
        while len(unfinished) > MAX_QUEUED:
            unfinished.popleft().block_until_ready()

    def update(self) -> dict[str, jax.Array]:
        """Sums over groups and applies the optimizer; returns the step's scalars."""
        parts = [self._sums[group.index] for group in self._placement.local_groups]
        sums = self._placement.join_sums(parts)
        self._views, self._sums, frozen = {}, {}, self._state.frozen
        state, sums, scalars = self._update(self._state.without_frozen(), sums)
        self._state = dataclasses.replace(state, frozen=frozen)
        self._take_views(sums)
        return scalars

    def is_idle(self, group: Group) -> bool:
        """Returns whether a local group has finished all of its micro-steps."""
        leaves = jax.tree.leaves(self._sums[group.index])
        return all(leaf.is_ready() for leaf in leaves)

    def _take_views(self, sums: Sums) -> None:
        local = self._placement.local_groups
        read = (self._state.step, self._state.params)
        self._views = {g.index: self._placement.state_view(read, g) for g in local}
        self._sums = {g.index: self._placement.sums_view(sums, g) for g in local}
