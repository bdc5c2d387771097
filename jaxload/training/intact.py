"""Finds the newest intact checkpoint of a run, and makes room for the next ones."""

import shutil
from pathlib import Path

from jaxload.console import Console, phase
from jaxload.errors import InputError
from jaxload.training.digests import (
    DamagedError,
    check_digests,
    num_files,
    read_checked,
    require_file,
)

FROZEN = "frozen"
"""Directory of the frozen parameters, beside the checkpoints."""

STATE = "state"
"""Item of a checkpoint with the training state."""

DATA = "data"
"""Item of a checkpoint with the state of the iterator over micro-batches."""

UNFINISHED = ".orbax-checkpoint-tmp"
"""Ending of the name of a checkpoint until it is complete."""

_POSITION = f"{DATA}/metadata"
_OF_ARRAYS = ("_METADATA", "manifest.ocdbt")
_RESTORE = "restore it from a copy, or choose another --workdir"


def newest_intact(directory: Path, console: Console) -> int | None:
    """Returns the step of the newest intact checkpoint; None without checkpoints.

    Prints one line for each newer checkpoint, which is damaged.

    Raises:
        InputError: All checkpoints are damaged.
    """
    steps = list_steps(directory)
    newest = steps[:1]
    while steps:
        step, *older = steps
        try:
            _check_checkpoint(directory / str(step), step, console)
            return step
        except DamagedError as error:
            now = list_steps(directory)
            if now[:1] != newest:  # A run saved another, and may have removed this one.
                steps, newest = now, now[:1]
            elif older:
                console.say(f"{error}; trying the checkpoint of step {older[0]}")
                steps = older
            else:
                raise InputError(f"{error}; {_RESTORE}") from error
    return None


def list_steps(directory: Path) -> list[int]:
    """Returns the steps of all checkpoints, damaged or not, the newest first."""
    names = [path.name for path in directory.glob("*")]
    steps = [int(name) for name in names if name.isascii() and name.isdecimal()]
    return sorted((step for step in steps if str(step) in names), reverse=True)


def check_frozen(directory: Path, console: Console) -> None:
    """Refuses checkpoints of adapters without intact frozen parameters."""
    path = directory / FROZEN
    if not path.is_dir():
        raise InputError(
            f"{path}: expected the frozen parameters of the run, found nothing; "
            f"{_RESTORE}"
        )
    try:
        _check_files(path, [path / name for name in _OF_ARRAYS], console)
    except DamagedError as error:
        raise InputError(f"{error}; {_RESTORE}") from error


def clear_the_way(directory: Path, newest: int) -> None:
    """Renames the checkpoints after `newest`, so that their steps can be saved again.

    Keeps one damaged checkpoint of each step, for a user who wants to repair it.
    Removes what processes that were killed, or met a full disk, left unfinished.
    """
    for step in list_steps(directory):
        if step > newest:
            aside = directory / f"{step}.damaged"
            shutil.rmtree(aside, ignore_errors=True)
            (directory / str(step)).rename(aside)
    for path in directory.glob(f"*{UNFINISHED}"):
        shutil.rmtree(path, ignore_errors=True)


def _check_checkpoint(directory: Path, step: int, console: Console) -> None:
    arrays = [directory / STATE / name for name in _OF_ARRAYS]
    _check_files(directory, [*arrays, directory / _POSITION], console)
    position = read_checked(directory / _POSITION)
    # 8.0 == 8, but cannot count micro-batches.
    if position != {"step": step} or type(position["step"]) is not int:
        raise DamagedError(
            f"{directory / _POSITION}: expected the data position of step {step}, got "
            f"{position!r:.80}"
        )


def _require(paths: list[Path]) -> None:
    for path in paths:
        require_file(path)


def _check_files(directory: Path, required: list[Path], console: Console) -> None:
    """Compares files with their digests; without digests, checks the required ones."""
    _require(required)
    title = f"checking {directory}"
    with phase(console, title, num_files(directory)) as advance:
        has_digests = check_digests(directory, on_file=advance)
    if not has_digests:
        _require(required)  # A run may have removed the directory meanwhile.
        console.say(
            f"{directory}: has no digests, as written by an older version; its "
            "content is not checked"
        )
