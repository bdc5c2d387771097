"""Progress display of anything that takes more than a few seconds."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

_LOG_SECONDS = 10.0


@contextlib.contextmanager
def phase(
    console: Console, title: str, total: int, *, done: int = 0
) -> Iterator[Callable[..., None]]:
    """Shows the progress of a phase of `total` parts, `done` of which are already done.

    Yields a function to call after each part, or with the number of parts done since
    the last call. A terminal shows a bar with rate and time left, a log a line every
    few seconds; both get one line at the end.
    """
    start = said = time.perf_counter()
    before = done
    bar = Progress(
        TextColumn(title),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task(title, total=total, completed=done, rate="")

    def advance(count: int = 1) -> None:
        nonlocal done, said
        done += count
        now = time.perf_counter()
        rate = (done - before) / (now - start)
        bar.update(task, completed=done, rate=f"{rate:.1f}/s")
        if not console.is_terminal and now - said > _LOG_SECONDS:
            said = now
            left = f"{(total - done) / rate:.0f} s left"
            console.print(
                f"{title}: {done}/{total}, {rate:.1f}/s, {left}", highlight=False
            )

    with bar:
        yield advance
    seconds = time.perf_counter() - start
    console.print(f"{title}: {done}/{total} in {seconds:.1f} s", highlight=False)


@contextlib.contextmanager
def count_rows(console: Console, title: str) -> Iterator[Callable[[int], None]]:
    """Shows the number of rows read so far, when the total is not known."""
    start = said = time.perf_counter()
    done = 0
    with console.status(title) if console.is_terminal else contextlib.nullcontext():

        def advance(count: int) -> None:
            nonlocal done, said
            done += count
            now = time.perf_counter()
            if not console.is_terminal and now - said > _LOG_SECONDS:
                said = now
                console.print(f"{title}: {done:,} rows", highlight=False)

        yield advance
    seconds = time.perf_counter() - start
    console.print(f"{title}: {done:,} rows in {seconds:.1f} s", highlight=False)
