"""Runs the parts of a preparation on a Ray cluster; needs the package ray."""

import logging
from collections.abc import Callable, Sequence

from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.media.preparation import Preparation
from jaxload.media.recovery import Part, Recovery
from jaxload.media.remote_step import Offload
from jaxload.media.runners import local_step
from jaxload.media.workers import run_here


def check_ray(preparation: Preparation) -> None:
    """Refuses plugins that encode batches.

    A Ray task has one CPU. Each of a machine's tasks would load the codec, all on the
    same GPUs, and fill batches with clips of its own part only.
    """
    if Offload.of(preparation.encoder()):
        raise InputError(
            f"--ray: codec {preparation.codec} or text encoder "
            f"{preparation.text_encoder} encodes batches, and every Ray task would "
            "load a copy on the same GPUs; run without --ray, with --shard I/N on each "
            "of several machines"
        )


def run_on_ray(
    parts: Sequence[Part], *, on_file: Callable[[], None], console: Console
) -> None:
    """Runs parts on the cluster at `RAY_ADDRESS`, or on a local one started here.

    Each part is one Ray task, which decodes and encodes.
    """
    try:
        import ray
        from ray.exceptions import RayError, RayTaskError
    except ImportError as error:
        raise InputError(
            "--ray: expected the package ray, found none; install it, or run without "
            "--ray"
        ) from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level=logging.ERROR)

    # Ray must not retry: `recover` does, and skips the file that killed a worker.
    @ray.remote(max_retries=0)
    def run(part: Part) -> int:
        num_files = 0

        def count() -> None:
            nonlocal num_files
            num_files += 1

        run_here([part], on_file=count, step=local_step(part))
        return num_files

    recover = Recovery(console)
    running = {run.remote(part): part for part in parts}
    while running:
        (done, *_), _ = ray.wait(list(running))
        part = running.pop(done)
        try:
            num_files = ray.get(done)
        except RayTaskError as error:
            raise error.cause from error
        except RayError as error:  # The worker or its machine died.
            again = recover(part, str(error).splitlines()[0])
            running[run.remote(again)] = again
        else:
            for _ in range(num_files):
                on_file()
