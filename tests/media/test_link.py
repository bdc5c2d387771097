"""Tests of jaxload.media.link."""

import multiprocessing

import pytest

from jaxload.media.link import FileDone, Link


def test_a_worker_notices_that_the_main_process_has_ended():
    ours, theirs = multiprocessing.Pipe()
    link = Link(theirs)
    ours.close()
    # Not an OSError, which would be taken for a problem with a media file.
    with pytest.raises(EOFError, match="main process has ended"):
        link.send(FileDone())
    with pytest.raises(EOFError):
        link.wait()
