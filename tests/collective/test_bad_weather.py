"""What happens to one rank in the middle of an exchange reaches the others soon, by name, and ends their line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collective import ranks
from collective.bad_weather import VICTIM
from programs import Programs

PROGRAM = Path(__file__).with_name("bad_weather.py")
NUM_RANKS = 3
LONG = 1800.0
"""Time limit of an exchange where nobody may have to wait for it."""


Seen = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def seen(programs: Programs) -> Seen:
    """What each rank that lived on saw in each of some happenings."""

    def see(folder: Path, timeout_seconds: float, *happenings: str, victim_lives: bool) -> list[dict[str, Any]]:
        living = [rank for rank in range(NUM_RANKS) if rank != VICTIM or victim_lives]
        arguments = (str(timeout_seconds), *happenings)
        return ranks.results(programs, PROGRAM, folder, *arguments, size=NUM_RANKS, ends=living)

    return see


@pytest.fixture(scope="module")
def lived_on(seen: Seen, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw of what a rank can live on with; one start for all."""
    folder = tmp_path_factory.mktemp("ranks")
    return seen(folder, LONG, "failing", "leaving", "not following", victim_lives=True)


def holds_of_others(results: list[dict[str, Any]], kinds: set[str]) -> None:
    for result in results:
        assert result["first"]["kind"] in kinds, result
        assert "read rows: rank" in result["first"]["text"]
        assert result["later"]["kind"] == "UnavailableError"
        assert "the training line ended when read rows failed" in result["later"]["text"]
        assert result["alive"] == []


def test_a_killed_rank_is_detected_immediately(seen: Seen, tmp_path: Path) -> None:
    results = [each["killed"] for each in seen(tmp_path, LONG, "killed", victim_lives=False)]
    holds_of_others(results, {"UnavailableError"})


@pytest.mark.slow
def test_a_rank_that_hangs_is_waited_for_only_so_long(seen: Seen, tmp_path: Path) -> None:
    results = [each["stopped"] for each in seen(tmp_path, 6.0, "stopped", victim_lives=False)]
    holds_of_others(results, {"DeadlineExceededError", "UnavailableError"})  # the second hears it from the first
    assert "DeadlineExceededError" in {result["first"]["kind"] for result in results}


def test_a_rank_that_fails_alone_notifies_the_others_though_it_keeps_running(lived_on: list[dict[str, Any]]) -> None:
    first, victim, last = [each["failing"] for each in lived_on]
    holds_of_others([first, last], {"UnavailableError"})
    assert victim["first"] == {"kind": "ZeroDivisionError", "text": "on this rank alone"}
    assert "ended when read rows failed" in victim["later"]["text"]


def test_a_rank_that_leaves_ends_the_calls_of_the_others(lived_on: list[dict[str, Any]]) -> None:
    first, _, last = [each["leaving"] for each in lived_on]
    holds_of_others([first, last], {"UnavailableError"})


def test_an_idle_rank_that_cannot_follow_raises_and_ends_the_line(
    lived_on: list[dict[str, Any]],
) -> None:
    first, victim, last = [each["not following"] for each in lived_on]
    holds_of_others([first, last], {"UnavailableError"})
    assert victim["first"]["kind"] == "FailedPreconditionError"
    assert "the other ranks make 'read rows', which this rank, being idle, cannot follow" in victim["first"]["text"]
    assert "it follows write" in victim["first"]["text"]
