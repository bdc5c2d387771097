"""Outputs of a trained run: sampled clips and exported weights."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.stages import Compiled

from jaxload.codecs.codec import load_codec
from jaxload.codecs.decoded import decode_clip
from jaxload.codecs.text_encoder import load_text_encoder, pad_text
from jaxload.config import Config
from jaxload.console import Console, phase
from jaxload.errors import InputError
from jaxload.media.video_files import write_gif
from jaxload.models import weights
from jaxload.models.weights import Naming
from jaxload.models.weights.families import weights_of
from jaxload.parallel.placement import Group
from jaxload.planning.footprint import SAMPLE
from jaxload.runs.dataset import check_sizes
from jaxload.runs.setup import local_compiler, this_placement, trainer_of
from jaxload.runs.workdir import WorkDir
from jaxload.training.checkpoint import Checkpoints
from jaxload.training.compile import enable_compile_cache
from jaxload.training.intact import check_frozen, newest_intact
from jaxload.training.lowering import Lowering

_ENLARGE = 4


def sample(config: Config, workdir: WorkDir, path: Path, console: Console) -> None:
    """Draws the config's sample from the newest checkpoint of a run."""
    check_sizes(config)  # Refuses a sample.shape that the model cannot take.
    enable_compile_cache(workdir.compile_cache)
    lowering = Lowering(trainer_of(config), this_placement(config))
    model, _ = _newest_model(config, lowering, workdir, console)
    group = lowering.placement.local_groups[0]
    with phase(console, "compiling", 1) as advance:
        sampler = local_compiler(config, lowering).lower(SAMPLE).compile()
        advance()
    view = lowering.placement.state_view(model, group)
    draw_sample(config, sampler, view, group, path)


def export(
    config: Config, workdir: WorkDir, path: Path, names: Naming, console: Console
) -> int:
    """Writes the weights of a run's newest checkpoint, with adapters merged in.

    Returns:
        Step of the checkpoint.
    """
    weights_of(config.model)  # Refuses a family without weight files at once.
    lowering = Lowering(trainer_of(config), this_placement(config))
    model, step = _newest_model(config, lowering, workdir, console)
    with phase(console, "writing", 1) as advance:
        graphdef = lowering.trainer.graphdef("none")
        weights.save(nnx.merge(graphdef, *model), path, names=names)
        advance()
    return step


def _newest_model(
    config: Config, lowering: Lowering, workdir: WorkDir, console: Console
) -> tuple[tuple[Any, Any], int]:
    """Returns `TrainState.model` and the step of the newest intact checkpoint."""
    step = newest_intact(workdir.checkpoints, console)
    if step is None:
        raise InputError(
            f"work directory {workdir.path}: expected a checkpoint, found none; train "
            "the run further first"
        )
    if config.model.lora_rank:
        check_frozen(workdir.checkpoints, console)
    keep = config.train.keep_checkpoints
    with Checkpoints(workdir.checkpoints, keep=keep) as checkpoints:
        return checkpoints.restore_model(step, lowering.state), step


def draw_sample(
    config: Config, sampler: Compiled, model: tuple[Any, Any], group: Group, path: Path
) -> None:
    """Draws the config's sample on one group and writes it as a GIF."""
    encoder = load_text_encoder(config.data.text_encoder, config.model.text_dim)
    text = pad_text(encoder.encode(config.sample.caption), config.model.num_text_tokens)
    seed = np.int32(config.sample.seed)
    latent = sampler(
        model,
        jax.device_put(text, group.replicated),
        jax.device_put(seed, group.replicated),
    )
    codec = load_codec(config.data.codec)
    video = decode_clip(codec, np.asarray(jax.device_get(latent)))
    write_gif(path, video, fps=config.shapes.fps, enlarge=_ENLARGE)
