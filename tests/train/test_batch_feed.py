"""The feed of a session: batches with positions, read ahead by a thread that ends with the feed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from monolith.nn import BatchContext
from monolith.train.input import feed as feed_module
from monolith.train.input.feed import BatchFeed


class SilentStream:
    """A live stream that has a first batch, and the second one when it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def __iter__(self) -> Iterator[int]:
        yield 1
        assert self.let_go.wait(60)
        yield 2


def test_a_batch_that_arrives_after_the_end_of_its_feed_is_not_numbered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feed_module, "_JOIN_SECONDS", 0.05)
    stream, numbered = SilentStream(), list[Any]()

    def number(batch: Any, _: bytes | None) -> BatchContext:
        numbered.append(batch)
        return cast("BatchContext", batch)

    feed = BatchFeed(stream, position=None, make_context=number, ahead=2)
    assert cast("Any", feed.take()) == 1
    reader = next(thread for thread in threading.enumerate() if thread.name == "session/input")
    with caplog.at_level(logging.WARNING):
        feed.close()
    assert "did not return from the source within 0.05 s; it is abandoned" in caplog.text
    assert reader.is_alive()
    stream.let_go.set()
    reader.join(60)
    assert not reader.is_alive()
    assert numbered == [1], "the session that was rebuilt numbers its batches itself"


def test_a_feed_ends_after_the_batch_that_is_being_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "_JOIN_SECONDS", 0.05)
    begun, let_go, numbered = threading.Event(), threading.Event(), list[Any]()

    def number(batch: Any, _: bytes | None) -> BatchContext:
        begun.set()
        assert let_go.wait(60)
        numbered.append(batch)
        return cast("BatchContext", batch)

    feed = BatchFeed([1], position=None, make_context=number, ahead=1)
    assert begun.wait(60)
    later = threading.Timer(0.2, let_go.set)
    later.start()
    feed.close()
    assert numbered == [1], "the session that is rebuilt would count on from there"
    later.join()
