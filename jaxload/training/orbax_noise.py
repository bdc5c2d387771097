"""Keeps tracebacks off the screen that Orbax prints for errors that it also raises."""

import functools
import logging
import sys


@functools.cache
def silence() -> None:
    """Leaves out these tracebacks for the rest of the process.

    They come from background threads, some of them after the error was raised.
    """
    logging.getLogger("absl").addFilter(_is_wanted)
    show = sys.unraisablehook

    def show_others(unraisable: "sys.UnraisableHookArgs") -> None:
        if not _is_late_reply(unraisable.exc_value):
            show(unraisable)

    sys.unraisablehook = show_others


def _is_wanted(record: logging.LogRecord) -> bool:
    return not (record.exc_info and "orbax" in record.pathname)


def _is_late_reply(error: BaseException | None) -> bool:
    """Returns whether TensorStore answered a request that Orbax had given up."""
    return isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
