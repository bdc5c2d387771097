"""Tests of jaxload.media.link."""

import multiprocessing

import pytest

from jaxload.media.inbox import PipeClosedError
from jaxload.media.link import FileDone, Link


def test_a_worker_notices_that_the_main_process_has_ended():
    ours, theirs = multiprocessing.Pipe()
    link = Link(theirs)
    ours.close()
    with pytest.raises(PipeClosedError, match="main process has ended"):
        link.send(FileDone(0))
    for _ in range(2):
        with pytest.raises(PipeClosedError):
            link.wait()
