"""The feed of a session: batches with positions, read ahead by a thread that ends with the feed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, cast

import pytest

from monolith.data.prefetch import runner
from monolith.errors import OutOfRangeError
from monolith.nn import BatchContext
from monolith.train.input import feed as feed_module
from monolith.train.input.feed import BatchFeed


def as_context(batch: Any, _: bytes | None) -> BatchContext:
    return cast("BatchContext", batch)


def test_an_error_of_the_input_is_raised_after_its_batches_and_names_the_thread() -> None:
    def batches() -> Iterator[int]:
        yield 1
        raise KeyError("slot 7")

    feed = BatchFeed(batches(), position=None, make_context=as_context, ahead=2)
    assert cast("Any", feed.take()) == 1
    with pytest.raises(KeyError, match="slot 7") as caught:
        feed.wait()
    assert caught.value.__notes__ == ["raised in thread 'session/input/enqueue-0', which fills queue 'session/input'"]
    feed.close()


def test_batches_are_made_on_the_stream_of_training_with_its_context_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SideStreams", pytest.fail)
    variable = ContextVar[str]("variable")
    variable.set("of training")
    seen = []

    def batches() -> Iterator[int]:
        for number in range(3):
            seen.append(variable.get())
            yield number

    feed = BatchFeed(batches(), position=None, make_context=as_context, ahead=2)
    assert [cast("Any", feed.take()) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OutOfRangeError):
        feed.take()
    feed.close()
    assert seen == ["of training"] * 3


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
    reader = next(thread for thread in threading.enumerate() if thread.name == "session/input/enqueue-0")
    with caplog.at_level(logging.WARNING):
        feed.close()
    assert "did not return from the source within 0.05 s; it is abandoned" in caplog.text
    assert reader.is_alive()
    stream.let_go.set()
    reader.join(60)
    assert not reader.is_alive()
    assert numbered == [1], "the session that was rebuilt numbers its batches itself"
