"""Runs the parts of a preparation on a Ray cluster; needs the package ray."""

import logging
from collections.abc import Callable, Sequence

from jaxload.errors import InputError
from jaxload.media.workers import Recover, Task


def run_on_ray(
    tasks: Sequence[Task], *, on_file: Callable[[], None], recover: Recover
) -> None:
    """Runs tasks on the cluster at `RAY_ADDRESS`, or on a local one started here."""
    try:
        import ray
        from ray.exceptions import RayError, RayTaskError
    except ImportError as error:
        raise InputError(
            "Ray is not installed; expected the package ray, or --workers without it"
        ) from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level=logging.ERROR)

    # `recover` decides about retries, because it knows which file killed a worker.
    @ray.remote(max_retries=0)
    def run(task: Task) -> int:
        num_files = 0

        def count() -> None:
            nonlocal num_files
            num_files += 1

        task(count)
        return num_files

    running = {run.remote(task): task for task in tasks}
    while running:
        (done, *_), _ = ray.wait(list(running))
        task = running.pop(done)
        try:
            num_files = ray.get(done)
        except RayTaskError as error:
            raise error.cause from error
        except RayError as error:  # The worker or its machine died.
            again = recover(task, str(error).splitlines()[0])
            running[run.remote(again)] = again
        else:
            for _ in range(num_files):
                on_file()
