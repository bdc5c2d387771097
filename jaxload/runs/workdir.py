"""The work directory of a run: what lies where, and which run may use it."""

import contextlib
import dataclasses
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path

from jaxload import config as config_lib
from jaxload.config import Config
from jaxload.errors import InputError
from jaxload.files import read_json, write_atomically

RESTORE = "restore the file, or choose another --workdir"
"""What to do about a file of a work directory that cannot be read."""

_FORMAT = 2
"""Of config.json, and with it of the directory; 0 is one without this number."""


@dataclasses.dataclass(frozen=True)
class WorkDir:
    """Paths of a run's files."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved config; a directory that has one holds a run."""
        return self.path / "config.json"

    @property
    def plan(self) -> Path:
        """The plan that the run executes."""
        return self.path / "plan.json"

    @property
    def metrics(self) -> Path:
        """One object per step."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Training states by step, and what no step changes."""
        return self.path / "checkpoints"

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is one to continue from."""
        return any(path.name.isdigit() for path in self.checkpoints.glob("*"))

    @property
    def compile_cache(self) -> Path:
        """XLA's compiled programs, so that a resume need not compile them again."""
        return self.path / "compile_cache"

    @property
    def sample(self) -> Path:
        """A clip drawn from the model after its last step."""
        return self.path / "sample.gif"

    @property
    def figure(self) -> Path:
        """Loss, and step time by bucket."""
        return self.path / "training.png"

    @property
    def finished(self) -> Path:
        """Written last, with the number of steps; removed when a run is extended."""
        return self.path / "finished.json"

    def is_finished(self, config: Config) -> bool:
        """Whether a run of this many steps, or more, is here with all its files."""
        if not self.finished.exists():
            return False
        found = read_json(self.finished, remedy=RESTORE)
        return found["num_steps"] >= config.train.num_steps

    def mark_finished(self, config: Config) -> None:
        """Says that every file of the run is written."""
        write_atomically(
            self.finished, json.dumps({"num_steps": config.train.num_steps}) + "\n"
        )

    def begin(self, config: Config) -> None:
        """Makes the directory hold this run."""
        self.finished.unlink(missing_ok=True)
        content = {"format": _FORMAT, **config_lib.to_dict(config)}
        text = json.dumps(content, indent=2) + "\n"
        write_atomically(self.config, text)

    def read_config(self) -> Config:
        """Returns the config of the run that this directory holds."""
        if not self.config.is_file():
            raise InputError(
                f"work directory {self.path}: expected a run, found no "
                f"{self.config.name}; train one first, or check --workdir"
            )
        content = read_json(self.config, remedy=RESTORE)
        if content.pop("format", 0) != _FORMAT:
            raise InputError(
                f"work directory {self.path}: holds a run of an older format; continue "
                "it with the version that began it, or choose another --workdir"
            )
        try:
            return config_lib.from_dict(content)
        except InputError as error:
            raise InputError(f"{self.config}: {error}") from error


@contextlib.contextmanager
def claim_workdir(path: Path, config: Config, *, resume: bool) -> Iterator[WorkDir]:
    """Holds a work directory for a run, or says why it cannot be had.

    Nothing that is there is touched. Another process is refused until this one ends,
    however it ends.
    """
    workdir = WorkDir(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / ".lock").open("w")
    except OSError as error:
        raise InputError(
            f"work directory {path}: cannot be written ({error.strerror}); choose "
            "another --workdir"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"work directory {path}: is in use by another process; wait for it to "
                "end, or choose another --workdir"
            ) from error
        if workdir.config.exists():
            _check_same_run(workdir, config, resume=resume)
        elif _has_other_files(workdir):
            raise InputError(
                f"work directory {path}: is not empty and holds no run; choose another "
                "--workdir"
            )
        yield workdir


def _has_other_files(workdir: WorkDir) -> bool:
    """Returns whether there is more than what a run leaves that was never begun."""
    leftovers = {workdir.compile_cache}
    return any(
        not entry.name.startswith(".") and entry not in leftovers
        for entry in workdir.path.iterdir()
    )


def _check_same_run(workdir: WorkDir, config: Config, *, resume: bool) -> None:
    changed = config_lib.differences(workdir.read_config(), config)
    fixed = {
        path: pair
        for path, pair in changed.items()
        if not config_lib.may_change_on_resume(path)
    }
    if fixed:
        path, (there, here) = next(iter(fixed.items()))
        more = f" and {len(fixed) - 1} more" if len(fixed) > 1 else ""
        raise InputError(
            f"work directory {workdir.path}: already holds a different run: {path} is "
            f"{there!r} there and {here!r} here{more}; choose another --workdir"
        )
    if not resume and not workdir.is_finished(config):
        raise InputError(
            f"work directory {workdir.path}: already holds this run, unfinished; add "
            "--resume to continue it, or choose another --workdir"
        )
