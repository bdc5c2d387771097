"""Prefetches micro-batches, with the number of the next step as its only state.

Grain provides the threads, worker processes and buffers. Grain's own iterator state is
not used, because it has an entry per worker process and can only be restored with the
same number of workers. Each element is a pure function of its index, so the number of
the next step is a complete state for any number of workers or hosts.
"""

import math
from collections.abc import Sequence
from typing import Any

import grain
from absl import flags

from jaxload.balance.schedule import Schedule
from jaxload.child_signals import children_ignore_interrupts
from jaxload.data.batch_memory import MIN_SHARED_BYTES, enter_worker
from jaxload.data.config import DataConfig
from jaxload.data.manifest import Manifest
from jaxload.data.source import HostBatch, MicroBatchSource


class Loader(grain.IterDataset[HostBatch]):
    """Micro-batches of the given replicas, in order, prefetched to the host."""

    def __init__(
        self,
        manifest: Manifest,
        schedule: Schedule,
        config: DataConfig,
        *,
        replicas: Sequence[int],
        num_at_once: int,
        num_steps: int,
        num_text_tokens: int,
    ):
        """Describes the data of a run; see `MicroBatchSource` for the arguments."""
        super().__init__()
        self._config = config
        self._source = MicroBatchSource(
            manifest,
            schedule,
            replicas=replicas,
            num_at_once=num_at_once,
            num_steps=num_steps,
            num_text_tokens=num_text_tokens,
        )

    def __iter__(self) -> "LoaderIterator":
        return LoaderIterator(self._source, self._config)


class LoaderIterator(grain.DatasetIterator[HostBatch]):
    """Iterator whose state is the first step with micro-batches left to consume."""

    def __init__(self, source: MicroBatchSource, config: DataConfig):
        super().__init__()
        self._source = source
        self._config = config
        self._step = 0
        self._num_read = 0  # Micro-batches read in the step.
        self._num_wanted: int | None = None  # Micro-batches of the step, if counted.
        self._reading: grain.DatasetIterator[HostBatch | None] | None = None

    def __next__(self) -> HostBatch:
        self.start_prefetch()
        assert self._reading is not None
        batch = next(self._reading)
        while batch is None:
            batch = next(self._reading)
        if batch.step != self._step:
            self._go_to(batch.step)
        self._num_read += 1
        return batch

    def get_state(self) -> dict[str, Any]:
        """Returns the first step with micro-batches left to consume.

        At the end of a step, the state is equal on every host, with one exception: on a
        host without a micro-batch in that step, the state advances when the next step
        begins.
        """
        if self._num_read and self._num_wanted is None:
            # Counted once per step, because device prefetch calls this per micro-batch.
            self._num_wanted = self._source.num_micro_batches(self._step)
        return {"step": self._step + (self._num_read == self._num_wanted)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Moves to the beginning of a step without reading earlier steps."""
        self._stop_reading()
        self._go_to(state["step"])

    def start_prefetch(self) -> None:
        """Starts to prefetch, unless it has started; else the first `next` does so."""
        if self._reading is not None:
            return
        first = self._step * self._source.elements_per_step
        rest = grain.MapDataset.source(self._source).slice(slice(first, None))
        config = self._config
        # An element that is None takes a slot of the buffer but no memory, so the
        # buffer gets extra slots for them.
        share = max(self._source.share_of_elements(self._step), 0.05)
        wanted = self._source.num_at_once * config.num_prefetch
        num_prefetch = math.ceil(max(wanted, config.num_threads) / share)
        ahead = rest.to_iter_dataset(
            grain.ReadOptions(
                num_threads=config.num_threads,
                prefetch_buffer_size=num_prefetch,
            ),
            # Workers take turns by index, so no element may be dropped here; `__next__`
            # skips those that are None.
            allow_nones=True,
        )
        if config.num_workers:
            # Grain reads absl flags here, and fails in programs that do not parse them.
            if not flags.FLAGS.is_parsed():
                flags.FLAGS.mark_as_parsed()
            shared = grain.experimental.DatasetOptions(min_shm_size=MIN_SHARED_BYTES)
            ahead = grain.experimental.WithOptionsIterDataset(ahead, shared)
            ahead = ahead.mp_prefetch(
                grain.multiprocessing.MultiprocessingOptions(
                    num_workers=config.num_workers,
                    per_worker_buffer_size=num_prefetch,
                ),
                worker_init_fn=enter_worker,
            )
        self._reading = iter(ahead)
        with children_ignore_interrupts():
            # Makes the iterators of the workers, which `start_prefetch` starts. Grain
            # would otherwise start them at the first `next`, outside of this context.
            self._reading.get_state()
            self._reading.start_prefetch()

    def close(self) -> None:
        """Stops the reader threads and processes."""
        self._stop_reading()
        super().close()

    def _go_to(self, step: int) -> None:
        self._step, self._num_read, self._num_wanted = step, 0, None

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.close()
            self._reading = None
