"""Terminal output: lines of text, and the progress of long operations."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich import console as rich_console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
)
from rich.text import Text

_LOG_SECONDS = 10.0
# Parts and seconds before the time left is estimated: first parts are often unlike the
# rest, for instance because a process starts.
_FEW_PARTS = 3
_FEW_SECONDS = 3.0


# Control characters but line breaks and tabs. In file names and captions, they could
# move the cursor, change colours or rename the terminal's window. The last row changes
# the direction of the text after it, so that a name could show in another order.
_CONTROLS = {
    code: f"\\x{code:02x}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\n\t"
} | {
    code: f"\\u{code:04x}"
    for code in (0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}


def visible(text: str) -> str:
    """Escapes what a terminal would not print: control characters, and half surrogates.

    File names that are not UTF-8 contain half surrogates, which cannot be encoded.
    """
    text = text.translate(_CONTROLS)
    return text.encode("utf-8", "backslashreplace").decode()


class Console(rich_console.Console):
    """Rich's console for text that may come from files, and so is never markup."""

    def __init__(self, **options: Any):
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def say(self, text: str) -> None:
        """Prints text without wrapping, colours or markup; see `visible`.

        Rich would wrap paths in logs, and interpret brackets in file names as markup.
        """
        self.print(visible(text), soft_wrap=True)


@contextlib.contextmanager
def phase(
    console: Console, title: str, total: int, *, done: int = 0
) -> Iterator[Callable[..., None]]:
    """Shows the progress of a phase of `total` parts, `done` of which are already done.

    Yields a function to call after each part, or with the number of parts done since
    the last call. A terminal shows a bar with rate and time left; a log gets a line
    every few seconds. At the end, both show one line.
    """
    start = said = time.perf_counter()
    before = done
    bar = Progress(
        # Not the title as the format of the column: it may hold braces.
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task(visible(title), total=total, completed=done, rate="")

    def advance(count: int = 1) -> None:
        nonlocal done, said
        done += count
        now = time.perf_counter()
        rate = _describe_rate(done - before, total - done, now - start)
        bar.update(task, completed=done, rate=rate)
        if not console.is_terminal and now - said > _LOG_SECONDS:
            said = now
            console.say(", ".join(filter(None, (f"{title}: {done}/{total}", rate))))

    with bar:
        yield advance
    seconds = time.perf_counter() - start
    console.say(f"{title}: {done}/{total} in {seconds:.1f} s")


def _describe_rate(count: int, num_left: int, seconds: float) -> str:
    """Returns the rate and the time left; empty if too little is known for them."""
    if count < _FEW_PARTS or seconds < _FEW_SECONDS:
        return ""
    left = round(num_left * seconds / count)
    hours, minutes = divmod(left // 60, 60)
    shown = f"{hours} h {minutes} min" if hours else f"{minutes} min {left % 60} s"
    shown = shown if left >= 60 else f"{left} s"
    return f"{count / seconds:.1f}/s, {shown} left"


@contextlib.contextmanager
def count_up(console: Console, title: str, unit: str) -> Iterator[Callable[..., None]]:
    """Shows the number of parts done so far, when the total is not known.

    Yields a function to call as in `phase`; `unit` names the parts, in the plural.
    """
    start = said = time.perf_counter()
    done = 0
    live = console.status(Text(visible(title))) if console.is_terminal else None
    with live or contextlib.nullcontext():

        def advance(count: int = 1) -> None:
            nonlocal done, said
            done += count
            now = time.perf_counter()
            if not console.is_terminal and now - said > _LOG_SECONDS:
                said = now
                console.say(f"{title}: {done:,} {unit}")

        yield advance
    seconds = time.perf_counter() - start
    console.say(f"{title}: {done:,} {unit} in {seconds:.1f} s")
