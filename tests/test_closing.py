"""`monolith.closing`: a ``with`` block gives the object itself, closes it at its end, and lets errors through."""

from __future__ import annotations

import pytest

from monolith.closing import Closing


class Counting(Closing):
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_a_block_gives_the_object_and_closes_it_once() -> None:
    counting = Counting()
    with counting as given:
        assert given is counting
        assert counting.closed == 0
    assert counting.closed == 1


def test_an_error_of_the_block_propagates_after_the_object_is_closed() -> None:
    counting = Counting()
    with pytest.raises(KeyError, match="lost"), counting:
        raise KeyError("lost")
    assert counting.closed == 1
