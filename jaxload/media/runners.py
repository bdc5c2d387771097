"""Runs the parts of a stage, in this process or in worker and encoder processes."""

import functools
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.media.encode_part import EncodePart
from jaxload.media.encode_step import LocalStep
from jaxload.media.encoders import Encoders
from jaxload.media.gpus import encoder_devices
from jaxload.media.link import Link
from jaxload.media.preparation import Preparation
from jaxload.media.recovery import Part, Recovery
from jaxload.media.remote_step import Offload, RemoteStep
from jaxload.media.shared_memory import SharedMemory
from jaxload.media.workers import run_here, run_in_processes
from jaxload.shapes.size_cover import shapes_of


@runtime_checkable
class Run(Protocol):
    """Function that runs parts of one stage and calls `on_file` after each file."""

    def __call__(
        self, parts: Sequence[Part], *, on_file: Callable[[], None], console: Console
    ) -> None: ...


def runner(num_workers: int, num_encoders: int | None = None) -> Run:
    """Returns a function that runs parts in `num_workers` local processes.

    With 0 workers, the function runs everything in this process. By default, there is
    one encoder per visible GPU, if the codec or the text encoder encodes batches.
    """
    if num_workers == 0:
        return run_in_this_process
    return functools.partial(
        run_in_local_processes, num_workers=num_workers, num_encoders=num_encoders
    )


def check_processes(
    preparation: Preparation, *, num_workers: int, num_encoders: int | None
) -> None:
    """Checks batch sizes and the number of encoders, before any work.

    Raises:
        InputError: A plugin states an invalid batch size, or the encoders have no GPU
            or nothing to encode.
    """
    encoder = preparation.encoder()
    encoder.size(None)
    sizes, rules = preparation.sizes or (), preparation.rules
    for shape in shapes_of(sizes, rules, preparation.geometry):
        encoder.size(shape)
    offload = Offload.of(encoder)
    if offload and num_workers:
        encoder_devices(num_encoders)
    elif num_encoders is not None:
        why = f"codec {preparation.codec} and the text encoder encode no batches"
        if not num_workers:
            why = "--workers 0 runs everything in one process"
        raise InputError(
            f"--encoders {num_encoders}: has no effect, because {why}; leave it out"
        )


def run_in_this_process(
    parts: Sequence[Part], *, on_file: Callable[[], None], console: Console
) -> None:
    """Decodes, encodes and writes in this process."""
    run_here(parts, on_file=on_file, step=local_step(parts[0]))


def local_step(part: Part) -> LocalStep | None:
    """Returns the encode step of a process that encodes; None if `part` only scans."""
    is_encoded = isinstance(part, EncodePart)
    return LocalStep(part.preparation.encoder()) if is_encoded else None


def run_in_local_processes(
    parts: Sequence[Part],
    *,
    num_workers: int,
    num_encoders: int | None,
    on_file: Callable[[], None],
    console: Console,
) -> None:
    """Decodes and writes in worker processes.

    A codec that encodes batches runs in encoder processes. Any other codec runs in the
    workers, which avoids the transfer of pixels and uses all cores.
    """
    run = functools.partial(
        run_in_processes,
        parts,
        num_workers=num_workers,
        on_file=on_file,
        recover=Recovery(console),
    )
    first = parts[0]
    if not isinstance(first, EncodePart):
        return run()
    encoder = first.preparation.encoder()
    offload = Offload.of(encoder)
    if not offload:
        return run(make_step=functools.partial(_worker_step, first.preparation))
    sizes = {s for part in parts if isinstance(part, EncodePart) for s in part.sizes}
    encoders = Encoders(
        encoder,
        offload,
        shapes_of(sizes, first.preparation.rules, first.preparation.geometry),
        num_encoders=num_encoders,
        num_workers=num_workers,
        console=console,
    )
    try:
        make_step = functools.partial(
            _remote_step, first.preparation, offload, encoders.memory
        )
        run(make_step=make_step, encoders=encoders)
        console.say(
            f"encoders waited for decoding {encoders.wait_share:.1%} of the time"
        )
    finally:
        encoders.close()


def _worker_step(preparation: Preparation, link: Link) -> LocalStep:
    return LocalStep(preparation.encoder())


def _remote_step(
    preparation: Preparation, offload: Offload, memory: SharedMemory, link: Link
) -> RemoteStep:
    return RemoteStep(preparation.encoder(), offload, link, memory)
