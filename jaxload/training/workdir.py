"""The work directory of a run: what lies where, and which run may use it."""

import dataclasses
import json
from pathlib import Path

from jaxload import config as config_lib
from jaxload.config import Config
from jaxload.errors import InputError
from jaxload.files import write_atomically
from jaxload.training.telemetry import read_metrics

# What may change between the start of a run and its resume: nothing that a step depends
# on, so that the losses of the longer run begin with those of the shorter.
_CHANGEABLE = (
    "data.num_threads",
    "data.num_prefetch",
    "train.num_steps",
    "train.log_every",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "sample.caption",
    "sample.shape",
    "sample.num_steps",
    "sample.guidance",
    "sample.seed",
)


@dataclasses.dataclass(frozen=True)
class WorkDir:
    """Paths of a run's files."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved config."""
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
        """Training states by step."""
        return self.path / "checkpoints"

    @property
    def compile_cache(self) -> Path:
        """XLA's compiled programs, so that a resume compiles nothing."""
        return self.path / "compile_cache"

    @property
    def sample(self) -> Path:
        """A clip drawn from the model after its last step."""
        return self.path / "sample.gif"

    @property
    def figure(self) -> Path:
        """Loss, and step time by bucket."""
        return self.path / "training.png"

    def is_finished(self, config: Config) -> bool:
        """Whether the run of this config is here, with its last file written."""
        num_rows = len(read_metrics(self.metrics))
        return self.figure.exists() and num_rows >= config.train.num_steps

    def read_config(self) -> Config:
        """The config of the run that this directory holds."""
        if not self.config.is_file():
            raise InputError(
                f"work directory {self.path}: expected a run, found no "
                f"{self.config.name}; train one first, or check --workdir"
            )
        try:
            return config_lib.from_dict(json.loads(self.config.read_text()))
        except json.JSONDecodeError as error:
            raise InputError(f"{self.config}: not JSON ({error})") from error


def claim_workdir(path: Path, config: Config, *, resume: bool) -> WorkDir:
    """Takes a work directory for a run, or says why it cannot be had.

    Nothing that is there is touched, but for the config of a run that is resumed.
    """
    workdir = WorkDir(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if workdir.config.exists():
            _check_same_run(workdir, config, resume=resume)
        elif any(path.iterdir()):
            raise InputError(
                f"work directory {path}: is not empty and holds no run; choose another "
                "--workdir"
            )
    except OSError as error:
        raise InputError(
            f"work directory {path}: cannot be written ({error.strerror}); choose "
            "another --workdir"
        ) from error
    text = json.dumps(config_lib.to_dict(config), indent=2) + "\n"
    write_atomically(workdir.config, text)
    return workdir


def _check_same_run(workdir: WorkDir, config: Config, *, resume: bool) -> None:
    changed = config_lib.differences(workdir.read_config(), config)
    fixed = {path: pair for path, pair in changed.items() if path not in _CHANGEABLE}
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
