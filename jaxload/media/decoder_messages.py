"""Silences decoders that print messages about damaged files to stderr.

The files are reported anyway, by the exceptions that the decoders raise.
"""

import ctypes
import functools
import logging
from pathlib import Path

_MAPS = Path("/proc/self/maps")


@functools.cache
def silence_decoders() -> None:
    """Silences Pillow, unless the program has set up logging, and its libtiff."""
    # Without any handler, Python prints the errors that a library logs.
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    _silence_libtiff()


def _silence_libtiff() -> None:
    """Removes the handlers of errors and warnings, for which Pillow has no function.

    Has no effect if libtiff is part of another library, as in other builds of Pillow.
    """
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return
    for path in {line.split(maxsplit=5)[-1] for line in lines}:
        if Path(path).name.startswith("libtiff"):
            library = ctypes.CDLL(path)  # The loaded one, and not a second copy.
            library.TIFFSetErrorHandler(None)
            library.TIFFSetWarningHandler(None)
