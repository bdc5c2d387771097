"""Checkpoints: training state and data position, written in the background."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from jaxload.errors import InputError
from jaxload.parallel.mesh import REPLICA_AXIS
from jaxload.training.step import TrainState

_STATE = "state"
_DATA = "data"
_FROZEN = "frozen"


class Checkpoints:
    """The checkpoints of a run; a resumed run starts from the newest complete one.

    Frozen parameters never change, so they are stored once, beside the checkpoints.
    """

    def __init__(self, directory: Path, *, keep: int):
        self._manager = ocp.CheckpointManager(
            directory.resolve(),
            item_handlers={
                _STATE: _array_handler(),
                _DATA: ocp.JsonCheckpointHandler(),
            },
            options=ocp.CheckpointManagerOptions(max_to_keep=keep, create=True),
        )
        self._frozen_path = directory.resolve() / _FROZEN
        self._frozen = ocp.Checkpointer(_array_handler())

    def latest_step(self) -> int | None:
        """Returns the step of the newest complete checkpoint; None if there is none."""
        return self._manager.latest_step()

    def save_frozen(self, state: TrainState) -> None:
        """Writes the frozen parameters of a run, before its first checkpoint.

        Returns when they are complete on disk, since every checkpoint needs them.
        """
        assert self.latest_step() is None
        self._frozen.save(
            self._frozen_path,
            args=ocp.args.PyTreeSave({_FROZEN: state.frozen}),
            force=True,  # A killed run may have left some before its first checkpoint.
        )

    def save(self, step: int, state: TrainState, data: dict[str, Any]) -> None:
        """Copies the trained state to the host, and writes it in the background.

        `data` is the state of the iterator over micro-batches, the same on every host.
        """
        assert _is_empty(state.frozen) or self._frozen_path.exists()
        # Not views, which every group would write under the same names.
        assert all(
            REPLICA_AXIS in leaf.sharding.mesh.axis_names
            for leaf in jax.tree.leaves(state)
        )
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
        frozen = self._restore_frozen(like.frozen)
        found = self._restore(step, _tree(like), partial=False)
        return TrainState(**found | {_FROZEN: frozen})

    def restore_model(self, step: int, like: TrainState) -> tuple[Any, Any]:
        """Reads only `TrainState.model`; the optimizer state is twice as large."""
        frozen = self._restore_frozen(like.frozen)
        found = self._restore(step, {"params": like.params}, partial=True)
        return found["params"], frozen

    def _restore(
        self, step: int, like: dict[str, Any], *, partial: bool
    ) -> dict[str, Any]:
        args = ocp.args.Composite(**{_STATE: _restore_args(like, partial=partial)})
        return self._manager.restore(step, args=args)[_STATE]

    def _restore_frozen(self, like: Any) -> Any:
        if _is_empty(like):
            return like
        check_frozen(self._frozen_path.parent)
        args = _restore_args({_FROZEN: like}, partial=False)
        return self._frozen.restore(self._frozen_path, args=args)[_FROZEN]

    def restore_data(self, step: int) -> dict[str, Any]:
        """Reads the state of the iterator over micro-batches."""
        args = ocp.args.Composite(**{_DATA: ocp.args.JsonRestore()})
        return self._manager.restore(step, args=args)[_DATA]

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_):
        # Also after an error, so that a checkpoint in progress is not lost.
        self._manager.wait_until_finished()
        self._manager.close()
        self._frozen.close()


def check_frozen(directory: Path) -> None:
    """Refuses checkpoints of adapters whose frozen parameters are missing."""
    path = directory / _FROZEN
    if not path.exists():
        raise InputError(
            f"{path}: expected the frozen parameters of the run, found nothing; "
            "restore the directory, or choose another --workdir"
        )


def _array_handler() -> ocp.PyTreeCheckpointHandler:
    # With use_replica_parallel, each replica writes a slice of every array. The slicing
    # programs would be compiled at the first save, in the middle of training.
    arrays = ocp.type_handlers.ArrayHandler(use_replica_parallel=False)
    registry = ocp.type_handlers.create_type_handler_registry((jax.Array, arrays))
    return ocp.PyTreeCheckpointHandler(type_handler_registry=registry)


def _restore_args(like: dict[str, Any], *, partial: bool) -> ocp.args.PyTreeRestore:
    restore_args = ocp.checkpoint_utils.construct_restore_args(like)
    return ocp.args.PyTreeRestore(
        like, restore_args=restore_args, partial_restore=partial
    )


def _is_empty(tree: Any) -> bool:
    return not jax.tree.leaves(tree)


def _tree(state: TrainState) -> dict[str, Any]:
    """Returns the contents of a checkpoint: the state without frozen parameters."""
    fields = dataclasses.fields(state)
    return {field.name: getattr(state, field.name) for field in fields} | {_FROZEN: {}}
