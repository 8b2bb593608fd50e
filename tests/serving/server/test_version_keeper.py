"""Versions that load slowly, are not ready, or fail, while commands come: what answers goes on answering."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from monolith.errors import DataLossError, NotFoundError, UnavailableError
from monolith.serving import version_watch
from monolith.serving.promotion import Promotion, PromotionConfig, version_keeper
from monolith.serving.server import ModelRegistry
from monolith.testing import SmallModel
from serving.server.promoted_models import PATIENCE, wait_until


class Source:
    """Versions that a test brings, holds up and breaks."""

    name = "small"
    is_fixed = False
    follows = True

    def __init__(self, *numbers: int) -> None:
        self.known = list(numbers)
        self.opened: list[tuple[int, bool]] = []
        self.models: dict[int, SmallModel] = {}
        self.before: dict[int, Callable[[], None]] = {}
        """Number -> called when the version is opened."""

    def numbers(self) -> list[int]:
        return sorted(self.known)

    def open(self, number: int, *, frozen: bool, others: Sequence[Any]) -> SmallModel:
        if number not in self.known:
            raise NotFoundError(f"there is no version {number}")
        self.opened.append((number, frozen))
        model = SmallModel(export=number)
        model.is_ready = number not in self.slow
        self.models[number] = model
        self.before.get(number, lambda: None)()
        return model

    slow: frozenset[int] = frozenset()
    """Versions that are not ready at first."""


class Kept:
    def __init__(self, source: Source, **options: Any) -> None:
        self.source = source
        self.registry = ModelRegistry()
        self.promotion = Promotion(self.registry, PromotionConfig(**options))
        self.promotion.add_source(source)

    def command(self, verb: str, **fields: Any) -> Any:
        return self.promotion.command("small", verb, fields)

    def loaded(self) -> list[int]:
        return [entry.version for entry in self.registry.entries("small")]

    def answers(self) -> int:
        return self.registry.default("small").version


@pytest.fixture
def keep(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Kept]]:
    monkeypatch.setattr(version_watch, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(version_keeper, "_LOOK_SECONDS", 0.01)
    made: list[Kept] = []

    def make(source: Source, **options: Any) -> Kept:
        made.append(Kept(source, **options))
        return made[-1]

    yield make
    for each in made:
        each.promotion.close()
        each.registry.close()


def test_a_version_that_was_loading_when_a_rollback_came_is_not_served(keep: Callable[..., Kept]) -> None:
    source = Source(1, 2)
    kept = keep(source)
    begun, release = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert release.wait(PATIENCE)

    source.before[3] = hold
    source.known.append(3)
    assert begun.wait(PATIENCE)
    kept.command("rollback", version=1)  # does not wait for it
    assert (kept.answers(), kept.loaded()) == (1, [1])
    release.set()
    assert source.models[3].closed.wait(PATIENCE)
    assert (kept.answers(), kept.loaded()) == (1, [1])


def test_a_version_is_activated_once_it_is_ready(keep: Callable[..., Kept]) -> None:
    source = Source(1)
    kept = keep(source)
    source.slow = frozenset({2})
    source.known.append(2)
    wait_until(lambda: 2 in source.models)
    assert kept.answers() == 1
    source.models[2].is_ready = True
    wait_until(lambda: kept.loaded() == [2])
    assert source.models[1].closed.wait(PATIENCE)


def test_a_command_does_not_wait_for_ever_for_a_version_that_is_not_ready(
    keep: Callable[..., Kept], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_keeper, "COMMAND_SECONDS", 0.05)
    source = Source(1, 2)
    kept = keep(source)
    source.slow = frozenset({1})
    with pytest.raises(Exception, match=r"version 1 was not ready within 0\.05 s"):
        kept.command("label", label="old", version=1)
    assert source.models[1].closed.wait(PATIENCE)
    assert (kept.loaded(), kept.registry.labels("small")) == ([2], {})


def test_a_version_that_requests_still_use_is_closed_after_them(keep: Callable[..., Kept]) -> None:
    source = Source(1)
    kept = keep(source)
    with kept.registry.using("small") as entry:
        source.known.append(2)
        wait_until(lambda: kept.loaded() == [2])
        assert entry.version == 1
        assert not source.models[1].closed.is_set()
    assert source.models[1].closed.wait(PATIENCE)


def test_a_held_version_that_cannot_follow_again_answers_on(keep: Callable[..., Kept]) -> None:
    source = Source(1)
    kept = keep(source)
    kept.command("rollback", version=1)
    assert source.opened == [(1, False), (1, True)]

    def fail() -> None:
        raise DataLossError("the log is damaged")

    source.before[1] = fail
    kept.command("resume")
    wait_until(lambda: kept.registry.refused("small") == {1: "the log is damaged"})
    kept.command("shadow")  # at the end of a command what is not wanted is freed
    assert (kept.answers(), kept.loaded()) == (1, [1])
    del source.before[1]
    source.known.append(2)
    wait_until(lambda: kept.loaded() == [2])


def test_versions_whose_folder_has_gone_answer_on(keep: Callable[..., Kept]) -> None:
    source = Source(1, 2)
    kept = keep(source, keep_versions=2)
    wait_until(lambda: kept.loaded() == [1, 2])
    source.known.clear()
    kept.command("label", label="old", version=1)
    kept.command("label", label="old", version=None)
    assert (kept.answers(), kept.loaded()) == (2, [1, 2])


def test_with_a_stable_version_the_newest_is_kept_in_addition_to_it(keep: Callable[..., Kept], tmp_path: Path) -> None:
    source = Source(1, 2, 3)
    kept = keep(source, keep_versions=2, file=str(tmp_path / "file"))
    kept.command("label", label="stable", version=1)
    wait_until(lambda: kept.loaded() == [1, 3])
    source.known.append(4)
    wait_until(lambda: kept.loaded() == [1, 4])
    assert kept.answers() == 1
    kept.command("label", label="stable", version=4)
    wait_until(lambda: kept.loaded() == [3, 4])


def test_a_lost_folder_at_the_start_is_an_error() -> None:
    registry = ModelRegistry()
    promotion = Promotion(registry)
    with pytest.raises(NotFoundError, match="model 'small': there is no version any more"):
        promotion.add_source(Source())
    with pytest.raises(NotFoundError, match="there is no model 'small' whose versions can be promoted"):
        promotion.command("small", "resume", {})
    promotion.close()
    registry.close()


def test_a_version_whose_files_were_unavailable_is_served_once_they_are_available(keep: Callable[..., Kept]) -> None:
    source = Source(1)
    kept = keep(source)
    away = threading.Event()
    away.set()

    def fail() -> None:
        if away.is_set():
            raise UnavailableError("its files are away")

    source.before[2] = fail
    source.known.append(2)
    wait_until(lambda: kept.registry.refused("small") == {2: "its files are away"})
    assert kept.answers() == 1
    away.clear()
    wait_until(lambda: kept.answers() == 2)
    assert kept.registry.refused("small") == {}


def test_a_refused_version_that_is_removed_is_no_longer_listed_after_a_resume(keep: Callable[..., Kept]) -> None:
    source = Source(1)
    kept = keep(source, keep_versions=2)
    kept.command("label", label="stable", version=1)

    def fail() -> None:
        raise DataLossError("its rows are damaged")

    source.before[2] = fail
    source.known.append(2)
    wait_until(lambda: kept.registry.refused("small") == {2: "its rows are damaged"})
    source.known.remove(2)
    kept.command("resume")
    assert kept.registry.refused("small") == {}
    assert kept.answers() == 1
