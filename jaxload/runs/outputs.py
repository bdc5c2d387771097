"""What is made of a trained run: clips, and weights for others."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jax.stages import Compiled
from rich.console import Console

from jaxload.codecs.codec import load_codec
from jaxload.codecs.text import load_text_encoder, pad_text
from jaxload.config import Config
from jaxload.console import phase
from jaxload.errors import InputError
from jaxload.media.video_files import write_gif
from jaxload.models import weights
from jaxload.models.weights import Naming
from jaxload.parallel.mesh import replica_mesh, replicated
from jaxload.runs.workdir import WorkDir
from jaxload.training.checkpoint import Checkpoints
from jaxload.training.compile import enable_compile_cache
from jaxload.training.programs import abstract_state, lower_sampler, make_trainer
from jaxload.training.step import Trainer

_FPS = 8
_ENLARGE = 4


def sample(config: Config, workdir: WorkDir, path: Path, console: Console) -> None:
    """Draws the config's sample from the newest checkpoint of a run."""
    mesh = replica_mesh()
    trainer = make_trainer(config)
    model, _ = _newest_model(config, trainer, mesh, workdir)
    enable_compile_cache(workdir.compile_cache)
    with phase(console, "compiling", 1) as advance:
        sampler = lower_sampler(config, trainer, model, mesh).compile()
        advance()
    draw_sample(config, sampler, model, mesh, path)


def export(
    config: Config, workdir: WorkDir, path: Path, names: Naming, console: Console
) -> int:
    """Writes the weights of the newest checkpoint of a run, with adapters merged in.

    Returns its step.
    """
    trainer = make_trainer(config)
    model, step = _newest_model(config, trainer, replica_mesh(), workdir)
    with phase(console, "writing", 1) as advance:
        weights.save(nnx.merge(trainer.graphdef, *model), path, names=names)
        advance()
    return step


def _newest_model(
    config: Config, trainer: Trainer, mesh: Mesh, workdir: WorkDir
) -> tuple[tuple[Any, Any], int]:
    """`TrainState.model` of the newest checkpoint, and its step."""
    with Checkpoints(
        workdir.checkpoints, keep=config.train.keep_checkpoints
    ) as checkpoints:
        step = checkpoints.latest_step()
        if step is None:
            raise InputError(
                f"work directory {workdir.path}: expected a checkpoint, found none; "
                "train the run further first"
            )
        like = abstract_state(config, trainer, mesh)
        return checkpoints.restore_model(step, like), step


def draw_sample(
    config: Config, sampler: Compiled, model: tuple[Any, Any], mesh: Mesh, path: Path
) -> None:
    """Draws the config's sample and writes it as an animation."""
    encoder = load_text_encoder(config.data.text_encoder, config.model.text_dim)
    text = encoder.encode(config.sample.caption)
    latent = sampler(
        model,
        jax.device_put(pad_text(text, config.model.num_text_tokens), replicated(mesh)),
        jax.device_put(np.int32(config.sample.seed), replicated(mesh)),
    )
    codec = load_codec(config.data.codec)
    video = codec.decode(np.asarray(jax.device_get(latent)))
    write_gif(path, video, fps=_FPS, enlarge=_ENLARGE)
