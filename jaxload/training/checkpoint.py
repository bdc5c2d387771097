"""Checkpoints: training state and data position, written in the background."""

import contextlib
import dataclasses
import functools
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from jaxload import interrupts
from jaxload.errors import InputError
from jaxload.parallel.mesh import REPLICA_AXIS
from jaxload.training.digests import FILE_NAME, MARK, seal_digests, write_digests
from jaxload.training.intact import DATA, FROZEN, STATE, UNFINISHED
from jaxload.training.step import TrainState

# Orbax raises the first error of its writers; asyncio would log those of the others.
logging.getLogger("asyncio").setLevel(logging.CRITICAL)


class Checkpoints:
    """The checkpoints of a run.

    Frozen parameters never change, so they are stored once, beside the checkpoints.
    Each checkpoint has digests of its files, written before it counts as complete;
    `jaxload.training.intact` compares them.
    """

    def __init__(self, directory: Path, *, keep: int):
        _silence()
        self._directory = directory.resolve()
        self._manager = ocp.CheckpointManager(
            self._directory,
            item_handlers={
                STATE: _array_handler(),
                DATA: ocp.JsonCheckpointHandler(),
            },
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep,
                create=True,
                # Metadata of older checkpoints is not needed, and may be damaged.
                lightweight_initialize=True,
                async_options=ocp.options.AsyncOptions(
                    # Called in the background, before the directory gets its name.
                    post_finalization_callback=self._write_digests
                ),
            ),
        )
        self._stack = contextlib.ExitStack()
        self._newest = self._directory  # Saved last by this process.
        self._is_unfinished = False
        self._failed: Path | None = None
        self._frozen = ocp.Checkpointer(_array_handler())

    def save_frozen(self, state: TrainState) -> None:
        """Writes the frozen parameters of a run, before its first checkpoint.

        Returns when they are complete on disk, since every checkpoint needs them.
        """
        assert self._manager.latest_step() is None
        path = self._directory / FROZEN
        with self._writing(path):
            self._frozen.save(
                path,
                args=ocp.args.PyTreeSave({FROZEN: state.frozen}),
                force=True,  # A killed run may have left some.
                custom_metadata=MARK,
            )
            write_digests(path)
            seal_digests(path)

    def save(self, step: int, state: TrainState, data: dict[str, Any]) -> None:
        """Copies the trained state to the host, and writes it in the background.

        `data` is the state of the iterator over micro-batches, the same on every host.
        """
        assert _is_empty(state.frozen) or (self._directory / FROZEN).exists()
        # Not views, which every group would write under the same names.
        assert all(
            REPLICA_AXIS in leaf.sharding.mesh.axis_names
            for leaf in jax.tree.leaves(state)
        )
        self._finish()
        self._newest = self._path(step)
        # An interrupt in the middle would leave a checkpoint that nobody completes.
        with interrupts.deferred(), self._writing(self._newest):
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    **{
                        STATE: ocp.args.PyTreeSave(_tree(state)),
                        DATA: ocp.args.JsonSave(data),
                    }
                ),
                custom_metadata=MARK,
            )
        self._is_unfinished = True

    def _write_digests(self) -> None:
        write_digests(_unfinished(self._newest))

    def _finish(self) -> None:
        """Waits for the checkpoint being written, and completes its digests."""
        if not self._is_unfinished:
            return
        self._is_unfinished = False
        with interrupts.deferred(), self._writing(self._newest):
            self._manager.wait_until_finished()
            seal_digests(self._newest)

    def _path(self, step: int) -> Path:
        return self._directory / str(step)

    def restore(self, step: int, like: TrainState) -> TrainState:
        """Reads a state with the shapes, types and shardings of `like`."""
        frozen = self._restore_frozen(like.frozen)
        found = self._restore(step, _tree(like), partial=False)
        return TrainState(**found | {FROZEN: frozen})

    def restore_model(self, step: int, like: TrainState) -> tuple[Any, Any]:
        """Reads only `TrainState.model`; the optimizer state is twice as large."""
        frozen = self._restore_frozen(like.frozen)
        found = self._restore(step, {"params": like.params}, partial=True)
        return found["params"], frozen

    def _restore(
        self, step: int, like: dict[str, Any], *, partial: bool
    ) -> dict[str, Any]:
        args = ocp.args.Composite(**{STATE: _restore_args(like, partial=partial)})
        with _restoring(self._path(step)):
            return self._manager.restore(step, args=args)[STATE]

    def _restore_frozen(self, like: Any) -> Any:
        if _is_empty(like):
            return like
        args = _restore_args({FROZEN: like}, partial=False)
        path = self._directory / FROZEN
        with _restoring(path):
            return self._frozen.restore(path, args=args)[FROZEN]

    def restore_data(self, step: int) -> dict[str, Any]:
        """Reads the state of the iterator over micro-batches."""
        args = ocp.args.Composite(**{DATA: ocp.args.JsonRestore()})
        return self._manager.restore(step, args=args)[DATA]

    def __enter__(self) -> "Checkpoints":
        self._stack.enter_context(
            interrupts.finishing(self._manager.is_saving_in_progress)
        )
        return self

    def __exit__(self, *_):
        # Also after an error, so that a checkpoint in progress is not lost.
        with interrupts.deferred(), self._stack, contextlib.closing(self._frozen):
            try:
                self._finish()
            finally:
                self._close_manager()

    def _close_manager(self) -> None:
        try:
            self._manager.close()
        except Exception as error:  # The error of a failed write may be raised again.
            if self._failed is None or _reason(error) is None:
                raise
        finally:
            if self._failed is not None:  # The disk may be full.
                shutil.rmtree(_unfinished(self._failed), ignore_errors=True)

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """Turns an error of the file system into one line."""
        try:
            yield
        except Exception as error:
            reason = _reason(error)
            if reason is None:
                raise
            self._failed = path
            raise InputError(
                f"{path}: cannot be written ({reason}); the checkpoints before it are "
                "complete; make room, then continue with --resume"
            ) from error


def _unfinished(path: Path) -> Path:
    """Returns the name that Orbax gives to a directory until it is complete."""
    return path.with_name(path.name + UNFINISHED)


_OS_ERROR = re.compile(r"\[os_error_code='(\d+)'")


def _reason(error: BaseException | None) -> str | None:
    """Returns the operating system's message in an error of Orbax, if there is one."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, InputError):
        return _reason(error.__cause__)
    found = _OS_ERROR.search(str(error))  # Errors of TensorStore are ValueErrors.
    return os.strerror(int(found[1])) if found else None


_FORGED = (AttributeError, LookupError, OSError, TypeError, ValueError)
"""Errors of Orbax for metadata that disagree with the arrays or with the model."""


@contextlib.contextmanager
def _restoring(directory: Path) -> Iterator[None]:
    """Names a checkpoint that cannot be restored.

    A checkpoint of an older version has no digests, and may be damaged in any way. With
    digests, its files are as they were written, but not necessarily by jaxload.
    """
    try:
        yield
    except Exception as error:
        is_checked = (directory / FILE_NAME).exists()
        if is_checked and not isinstance(error, _FORGED):
            raise
        lines = str(error).splitlines() or [type(error).__name__]
        raise InputError(
            f"{directory}: cannot be restored ({lines[0]:.200}); remove it to continue "
            "from the checkpoint before it, or choose another --workdir"
        ) from error


@functools.cache
def _silence() -> None:
    """Leaves out the tracebacks that Orbax prints for errors that it also raises.

    For the rest of the process: some come from background threads, after the error.
    """
    logging.getLogger("absl").addFilter(_is_wanted)
    show = sys.unraisablehook

    def show_others(unraisable: "sys.UnraisableHookArgs") -> None:
        if not _is_late_reply(unraisable.exc_value):
            show(unraisable)

    sys.unraisablehook = show_others


def _is_wanted(record: logging.LogRecord) -> bool:
    return not (record.exc_info and "orbax" in record.pathname)


def _is_late_reply(error: BaseException | None) -> bool:
    """Returns whether TensorStore answered a request that Orbax had given up."""
    return isinstance(error, RuntimeError) and str(error) == "Event loop is closed"


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
    return {field.name: getattr(state, field.name) for field in fields} | {FROZEN: {}}
