"""Progress of a task, in files, that a repeated task does not count twice."""

from collections.abc import Callable


class FileProgress:
    """Calls a function for each finished file of a task, once even if it restarts.

    A task finishes its files in the same order each time.
    """

    def __init__(self, on_file: Callable[[], None]):
        self._on_file = on_file
        self._num_finished = 0
        self._num_reported = 0

    def __call__(self) -> None:
        """Counts a finished file, and reports it unless an earlier attempt did."""
        self._num_finished += 1
        if self._num_finished > self._num_reported:
            self._num_reported += 1
            self._on_file()

    def restart(self) -> None:
        """Counts from the first file again."""
        self._num_finished = 0
