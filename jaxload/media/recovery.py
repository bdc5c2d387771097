"""Recovers from dead workers by finding the file that killed them."""

from collections import Counter

from rich.console import Console

from jaxload.errors import InputError
from jaxload.media.preparation import Part, without_deadly


class Recovery:
    """Retries parts whose workers died, and skips a file that has killed two."""

    def __init__(self, console: Console):
        self._console = console
        self._deaths: Counter[tuple[int, str]] = Counter()

    def __call__(self, part: Part, how: str) -> Part:
        """Returns the part to run instead of one whose worker died."""
        name = part.marker.read_text() if part.marker.exists() else ""
        self._deaths[part.index, name] += 1
        self._console.print(
            f"a worker died ({how}) at {name or 'its start'}",
            highlight=False,
            markup=False,
        )
        if self._deaths[part.index, name] < 2:
            return part
        if not name or name in part.deadly:
            raise InputError(
                f"workers die where no file is read ({how}); run with --workers 0, "
                "which shows why; what was done is kept"
            )
        return without_deadly(part, frozenset([name]))
