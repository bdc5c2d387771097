"""Reads micro-batches ahead of their use, and remembers nothing but how far it is.

Threads, worker processes and their buffers are Grain's. The state is not: Grain's own
holds a state for each worker process, and so can only be restored with as many. Since
element i is a pure function of i, the number of the next micro-step is all there is to
know, on any number of workers or hosts.
"""

from collections.abc import Sequence
from typing import Any

import grain
from absl import flags

from jaxload.balance.schedule import Lockstep
from jaxload.data.batch_memory import MIN_SHARED_BYTES, enter_worker
from jaxload.data.manifest import Manifest
from jaxload.data.source import Batch, DataConfig, MicroBatchSource


def micro_batch_dataset(
    manifest: Manifest,
    schedule: Lockstep,
    *,
    replicas: Sequence[int],
    num_micro_steps: int,
    num_text_tokens: int,
) -> grain.MapDataset[Batch]:
    """The micro-batches that some replicas run, by micro-step: random access."""
    source = MicroBatchSource(
        manifest,
        schedule,
        replicas=replicas,
        num_micro_steps=num_micro_steps,
        num_text_tokens=num_text_tokens,
    )
    return grain.MapDataset.source(source)


class ReadAhead(grain.IterDataset[Batch]):
    """Micro-batches in order, read by threads or processes ahead of their consumer."""

    def __init__(self, micro_batches: grain.MapDataset[Batch], config: DataConfig):
        super().__init__()
        self._micro_batches = micro_batches
        self._config = config

    def __iter__(self) -> "ReadAheadIterator":
        return ReadAheadIterator(self._micro_batches, self._config)


class ReadAheadIterator(grain.DatasetIterator[Batch]):
    """Where a consumer is. Its state is the number of the next micro-step."""

    def __init__(self, micro_batches: grain.MapDataset[Batch], config: DataConfig):
        super().__init__()
        self._micro_batches = micro_batches
        self._config = config
        self._next_micro_step = 0
        self._reading: grain.DatasetIterator[Batch] | None = None

    def __next__(self) -> Batch:
        self.start_prefetch()
        assert self._reading is not None
        batch = next(self._reading)
        self._next_micro_step += 1
        return batch

    def get_state(self) -> dict[str, Any]:
        """The next micro-step: the same on every host."""
        return {"micro_step": self._next_micro_step}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to another micro-step; nothing before it is read."""
        self._stop_reading()
        self._next_micro_step = state["micro_step"]

    def start_prefetch(self) -> None:
        """Starts to read, which the first `next` would do otherwise."""
        if self._reading is not None:
            return
        rest = self._micro_batches.slice(slice(self._next_micro_step, None))
        config = self._config
        ahead = rest.to_iter_dataset(
            grain.ReadOptions(
                num_threads=config.num_threads,
                prefetch_buffer_size=max(config.num_prefetch, config.num_threads),
            )
        )
        if config.num_workers:
            # Grain looks at its flags here, which only programs of absl parse.
            if not flags.FLAGS.is_parsed():
                flags.FLAGS.mark_as_parsed()
            shared = grain.experimental.DatasetOptions(min_shm_size=MIN_SHARED_BYTES)
            ahead = grain.experimental.WithOptionsIterDataset(ahead, shared)
            ahead = ahead.mp_prefetch(
                grain.multiprocessing.MultiprocessingOptions(
                    num_workers=config.num_workers,
                    per_worker_buffer_size=config.num_prefetch,
                ),
                worker_init_fn=enter_worker,
            )
        self._reading = iter(ahead)
        self._reading.start_prefetch()

    def close(self) -> None:
        """Stops threads and processes."""
        self._stop_reading()
        super().close()

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.close()
            self._reading = None
