"""Queue that collects items into batches; all items of a batch have the same key."""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from jaxload.media.batch_encoder import Key

T = TypeVar("T")

# Batches that may be taken before an older partial batch. Records are written in order,
# so the results behind a clip of a rare shape stay in memory until it is encoded.
_MAX_OVERTAKEN = 32


@dataclasses.dataclass(frozen=True)
class Batch(Generic[T]):
    """Items to encode in one call."""

    key: Key
    items: tuple[T, ...]


@dataclasses.dataclass
class _PartialBatch(Generic[T]):
    """Items of one key, too few for a batch."""

    opened_at: int
    """Number of batches that had been taken from the queue when this one was begun."""

    items: list[T]


class BatchQueue(Generic[T]):
    """Batches to encode, oldest first; `size` maps a key to its number of items."""

    def __init__(self, size: Callable[[Key], int]):
        self._size = size
        self._ready: deque[Batch[T]] = deque()
        self._partial: dict[Key, _PartialBatch[T]] = {}
        self._num_taken = 0

    def add(self, key: Key, item: T) -> None:
        """Adds an item to the partial batch of its key."""
        partial = self._partial.setdefault(key, _PartialBatch(self._num_taken, []))
        partial.items.append(item)
        if len(partial.items) >= self._size(key):
            self._close(key)

    def put_back(self, batch: Batch[T]) -> None:
        """Puts a batch at the front of the queue, full or not."""
        self._ready.appendleft(batch)

    def take(self) -> Batch[T] | None:
        """Removes and returns the next batch; None if no batch is ready.

        A partial batch is ready once `_MAX_OVERTAKEN` later batches were taken.
        """
        for key, partial in self._partial.items():
            if self._num_taken - partial.opened_at >= _MAX_OVERTAKEN:
                self._close(key)
                break
        if not self._ready:
            return None
        self._num_taken += 1
        return self._ready.popleft()

    def take_partial(self, *, clips_only: bool = False) -> Batch[T] | None:
        """Removes and returns the next batch, even a partial one; None if empty.

        For use when no item can be added before a batch is encoded. With `clips_only`,
        no partial batch of captions is taken.
        """
        keys = [k for k in self._partial if not clips_only or k is not None]
        if not self._ready and keys:
            self._close(min(keys, key=lambda key: self._partial[key].opened_at))
        return self.take()

    def discard(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Removes the items for which `unwanted` is true, and returns them."""
        found = [item for item in self._items() if unwanted(item)]
        ready = [
            Batch(batch.key, tuple(i for i in batch.items if not unwanted(i)))
            for batch in self._ready
        ]
        self._ready = deque(batch for batch in ready if batch.items)
        for key, partial in list(self._partial.items()):
            partial.items = [item for item in partial.items if not unwanted(item)]
            if not partial.items:
                del self._partial[key]
        return found

    def _close(self, key: Key) -> None:
        self._ready.append(Batch(key, tuple(self._partial.pop(key).items)))

    def _items(self) -> Iterator[T]:
        for batch in self._ready:
            yield from batch.items
        for partial in self._partial.values():
            yield from partial.items
