"""Work directory of a run: the paths of its files, and a lock."""

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
from jaxload.training.intact import list_steps

RESTORE = "restore the file, or choose another --workdir"
"""Remedy for a file of a work directory that cannot be read."""

_FORMAT = 2
"""Format of config.json and so of the directory; 0: config.json names no format."""


@dataclasses.dataclass(frozen=True)
class WorkDir:
    """Paths of a run's files."""

    path: Path

    @property
    def config(self) -> Path:
        """File of the resolved config; a directory with this file holds a run."""
        return self.path / "config.json"

    @property
    def plan(self) -> Path:
        """File of the plan that the run follows."""
        return self.path / "plan.json"

    @property
    def metrics(self) -> Path:
        """File of events, one JSON object per line."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Directory of training states by step, and of frozen parameters."""
        return self.path / "checkpoints"

    @property
    def has_checkpoint(self) -> bool:
        """True if there is a checkpoint to resume from."""
        return self.num_done() > 0

    @property
    def compile_cache(self) -> Path:
        """Directory of XLA's compiled programs, which a resumed run reuses."""
        return self.path / "compile_cache"

    @property
    def sample(self) -> Path:
        """Clip drawn from the model after the last step."""
        return self.path / "sample.gif"

    @property
    def figure(self) -> Path:
        """Figure of the loss, and of the step time by bucket."""
        return self.path / "training.png"

    @property
    def finished(self) -> Path:
        """File written last, with the number of steps; removed if a run is extended."""
        return self.path / "finished.json"

    def is_finished(self, config: Config) -> bool:
        """Returns whether the run here is finished, with at least these steps."""
        if not self.finished.exists():
            return False
        found = read_json(self.finished, remedy=RESTORE).get("num_steps")
        if type(found) is not int:
            raise InputError(
                f"{self.finished}: expected num_steps, the number of steps, got "
                f"{found!r:.80}; {RESTORE}"
            )
        return found >= config.train.num_steps

    def num_done(self) -> int:
        """Returns the step of the newest checkpoint, intact or not; 0 without any."""
        return max(list_steps(self.checkpoints), default=0)

    def mark_finished(self, config: Config) -> None:
        """Records that every file of the run is written."""
        write_atomically(
            self.finished, json.dumps({"num_steps": config.train.num_steps}) + "\n"
        )

    def begin(self, config: Config) -> None:
        """Writes the config, so that the directory holds this run."""
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


def no_run(workdir: WorkDir) -> InputError:
    """Returns the error of a resume without a run."""
    return InputError(
        f"no run to resume in {workdir.path}: expected {workdir.config.name} there, "
        "found none; check --workdir, or leave out --resume to start a run"
    )


@contextlib.contextmanager
def claim_workdir(path: Path, config: Config, *, resume: bool) -> Iterator[WorkDir]:
    """Locks a work directory for a run, or refuses it with the reason.

    Existing files are not changed. Other processes are refused until the context is
    closed or this process ends, even by a crash.
    """
    workdir = WorkDir(path)
    if resume and not workdir.config.is_file():
        raise no_run(workdir)
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
    """Returns whether there are files that a run does not write before it begins."""
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
            f"{there!r:.200} there and {here!r:.200} here{more}; choose another "
            "--workdir"
        )
    num_done = workdir.num_done()
    if config.train.num_steps < num_done:
        raise InputError(
            f"train.num_steps={config.train.num_steps}: expected {num_done} or more, "
            f"the steps that the run in {workdir.path} has done; raise it, or choose "
            "another --workdir"
        )
    if not resume and not workdir.is_finished(config):
        raise InputError(
            f"work directory {workdir.path}: already holds this run, unfinished; add "
            "--resume to continue it, or choose another --workdir"
        )
