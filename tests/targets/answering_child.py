"""Child process of test_child_process.py, which replies or fails on request."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxload.errors import InputError
from jaxload.targets import serve

Request = dict[str, Any]
Send = Callable[[dict[str, Any]], None]


def echo(request: Request, reply: Send) -> None:
    for value in request["values"]:
        reply({"value": value})


def wait_for_files(request: Request, reply: Send) -> None:
    """Replies only after the parent has created a file for the previous reply."""
    for path in request["files"]:
        reply({"file": path})
        deadline = time.monotonic() + 20
        while not Path(path).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(path)
            time.sleep(0.01)


def chatter(request: Request, reply: Send) -> None:
    """Prints to stdout and stderr, as Python and as C++ do, around its reply."""
    print('{"value": "printed"}', end="")
    os.write(1, b'{"value": "written"}\n')
    reply({"value": "replied"})
    os.write(2, b"more than a pipe holds\n" * 100_000)


def describe(request: Request, reply: Send) -> None:
    reply({"environment": dict(os.environ), "path": sys.path})


def refuse(request: Request, reply: Send) -> None:
    reply({"value": 1})
    raise InputError("model.width=7: expected a multiple of 2; choose another")


def fail(request: Request, reply: Send) -> None:
    reply({"value": 1})
    for number in range(request.get("lines", 0)):
        os.write(2, b"line %d \xff\n" % number)
    os.write(2, b"\t\n" * 100)
    raise ZeroDivisionError("a bug")


def die(request: Request, reply: Send) -> None:
    os.write(2, b"out of luck\n")
    os.kill(os.getpid(), getattr(signal, request["signal"]))


def break_off(request: Request, reply: Send) -> None:
    """Dies in the middle of a reply."""
    reply({"value": 1})
    descriptors = map(int, os.listdir("/proc/self/fd"))
    os.write(next(filter(_is_pipe_of_replies, descriptors)), b'{"value"')
    os._exit(3)


def _is_pipe_of_replies(descriptor: int) -> bool:
    path = f"/proc/self/fd/{descriptor}"
    # The only pipe besides stdin; the descriptor of listdir is closed already.
    return descriptor > 2 and os.path.exists(path) and "pipe:" in os.readlink(path)


def wait(request: Request, reply: Send) -> None:
    reply({"pid": os.getpid()})
    time.sleep(60)


ACTIONS = {
    action.__name__: action
    for action in (
        *(echo, wait_for_files, chatter, describe),
        *(refuse, fail, die, break_off, wait),
    )
}


def main() -> None:
    """Serves one request: runs the function that its `action` names."""
    print("a line before the request is read")
    serve(lambda request, reply: ACTIONS[request["action"]](request, reply))


if __name__ == "__main__":
    main()
