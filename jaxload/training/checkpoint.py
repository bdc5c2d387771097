"""Checkpoints: training state and place in the data, written in the background."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from jaxload.training.step import TrainState

_STATE = "state"
_DATA = "data"


class Checkpoints:
    """The checkpoints of a run; a resume starts from the newest complete one."""

    def __init__(self, directory: Path, *, keep: int):
        # Replicas writing a part each would cut every array with a program of its own,
        # compiled at the first save: in the middle of training.
        arrays = ocp.type_handlers.ArrayHandler(use_replica_parallel=False)
        registry = ocp.type_handlers.create_type_handler_registry((jax.Array, arrays))
        self._manager = ocp.CheckpointManager(
            directory.resolve(),
            item_handlers={
                _STATE: ocp.PyTreeCheckpointHandler(type_handler_registry=registry),
                _DATA: ocp.JsonCheckpointHandler(),
            },
            options=ocp.CheckpointManagerOptions(max_to_keep=keep, create=True),
        )

    def latest_step(self) -> int | None:
        """The step of the newest complete checkpoint."""
        return self._manager.latest_step()

    def save(self, step: int, state: TrainState, data: dict[str, Any]) -> None:
        """Copies the state off the devices; the rest happens in the background.

        `data` is the state of the iterator over micro-batches, the same on every host.
        """
        self._manager.save(
            step,
            args=ocp.args.Composite(
                **{
                    _STATE: ocp.args.PyTreeSave(_tree(state)),
                    _DATA: ocp.args.JsonSave(data),
                }
            ),
        )

    def restore(self, step: int, like: TrainState) -> TrainState:
        """Reads a state with the shapes, types and shardings of `like`."""
        return TrainState(**self._restore(step, _tree(like), partial=False))

    def restore_model(self, step: int, like: TrainState) -> tuple[Any, Any]:
        """Reads `TrainState.model` alone: the optimizer's state is twice as large."""
        tree = {"params": like.params, "frozen": like.frozen}
        found = self._restore(step, tree, partial=True)
        return found["params"], found["frozen"]

    def _restore(
        self, step: int, like: dict[str, Any], *, partial: bool
    ) -> dict[str, Any]:
        restore_args = ocp.checkpoint_utils.construct_restore_args(like)
        wanted = ocp.args.PyTreeRestore(
            like, restore_args=restore_args, partial_restore=partial
        )
        found = self._manager.restore(step, args=ocp.args.Composite(**{_STATE: wanted}))
        return found[_STATE]

    def restore_data(self, step: int) -> dict[str, Any]:
        """Reads the state of the iterator over micro-batches."""
        args = ocp.args.Composite(**{_DATA: ocp.args.JsonRestore()})
        return self._manager.restore(step, args=args)[_DATA]

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_):
        # However the run ends: a checkpoint that was begun is work that was done.
        self._manager.wait_until_finished()
        self._manager.close()


def _tree(state: TrainState) -> dict[str, Any]:
    return {
        field.name: getattr(state, field.name) for field in dataclasses.fields(state)
    }
