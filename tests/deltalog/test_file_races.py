"""Writers that open a part in a folder at once, beside readers, in any order of what they do to files.

Threads take turns: one of them runs until it touches a file, then a seeded draw says who goes on, and who never does.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltalog.increments import PART, increment, opening
from monolith.deltalog import Claim, Replay, Tail, Transport
from monolith.deltalog.transports import file_lineage, file_segments, file_tail, file_transport
from monolith.errors import AbortedError, UnavailableError
from monolith.files import LocalStorage

SEGMENT_BYTES = 400
"""Two records."""


class KilledError(BaseException):
    """Ends a thread where it stands, as SIGKILL ends a process: nothing of it touches a file any more."""


class Turns:
    """Lets one of several threads run at a time, and says at every point who is next."""

    def __init__(self, seed: int, jobs: list[Callable[[], None]], *, killed: int) -> None:
        self._draw = random.Random(seed)  # noqa: S311 - it is to be the same again
        self._stay = self._draw.choice((0.0, 0.5, 0.8, 0.95))
        self._mine = [threading.Semaphore(0) for _ in jobs]
        self._back = threading.Semaphore(0)
        self._alive = set(range(len(jobs)))
        self._doomed = {job: self._draw.randrange(1, 60) for job in self._draw.sample(range(len(jobs)), killed)}
        self._dead: set[int] = set()
        self._jobs: dict[int, int] = {}
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=each) for each in enumerate(jobs)]

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        job = 0
        while self._alive:
            if job not in self._alive or self._draw.random() >= self._stay:
                job = self._draw.choice(sorted(self._alive))
            self._mine[job].release()
            assert self._back.acquire(timeout=60)
        for thread in self._threads:
            thread.join(60)

    def point(self) -> None:
        """Somebody else may go on here; called by other threads, it does nothing."""
        job = self._jobs.get(threading.get_ident())
        if job is None:
            return
        if job not in self._dead:
            self._back.release()
            self._mine[job].acquire()
        self._doomed[job] = self._doomed.get(job, 1 << 30) - 1
        if self._doomed[job] <= 0:
            self._dead.add(job)
            raise KilledError

    def _run(self, job: int, work: Callable[[], None]) -> None:
        self._mine[job].acquire()
        self._jobs[threading.get_ident()] = job
        try:
            work()
        except KilledError:
            pass
        except BaseException as error:  # noqa: BLE001 - told by the test
            self.failures.append(error)
        finally:
            self._alive.discard(job)
            self._back.release()


class Story:
    """What writers were told is in the log, and what readers found there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.acknowledged: set[tuple[int, int]] = set()
        self.tails: list[tuple[Tail, Replay, list[tuple[int, int]]]] = []
        self.alive: list[list[tuple[int, int]]] = []
        """What readers found that nobody has killed."""

    def transport(self) -> Transport:
        return file_transport.FileTransport(self._folder, segment_bytes=SEGMENT_BYTES)

    def write(self, writer: int, lives: int, *, failing: int = 0) -> None:
        """Opens the part, appends, and opens it again unless another one has it; some openings cannot be made."""
        transport = self.transport()
        refusals = iter(range(failing))
        claimed = False
        for _ in range(lives):
            claims: list[Claim] = []

            def made(claim: Claim, claims: list[Claim] = claims) -> bytes:
                if next(refusals, None) is not None:
                    raise UnavailableError("not now")
                claims.append(claim)
                return opening(claim, writer=writer)

            try:
                appender = transport.open(PART, made, after_writer=writer if claimed else None)
                claimed = True
                with closing(appender):
                    generation, number, _ = claims[-1]
                    self.acknowledged.add((generation, number))
                    for following in range(number + 1, number + 5):
                        appender.append(following, increment(following, generation=generation, writer=writer).encode())
                        self.acknowledged.add((generation, following))
            except UnavailableError:
                continue
            except AbortedError:
                return

    def follow(self, begin: int | None, looks: int) -> None:
        found: list[tuple[int, int]] = []
        mine = (self.transport().tail(PART, begin), Replay(PART, place="log", next_number=begin), found)
        self.tails.append(mine)
        for _ in range(looks):
            self.read(*mine)
        self.alive.append(found)

    def read(self, tail: Tail, replay: Replay, found: list[tuple[int, int]]) -> None:
        while (record := tail.next()) is not None:
            outcome = replay.take(record)
            assert not outcome.verdict.is_wrong, outcome.text
            if outcome.verdict.counts and outcome.increment is not None:
                found.append((outcome.increment.generation, outcome.increment.number))

    def whole(self, begin: int | None) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        with closing(self.transport().tail(PART, begin)) as tail:
            self.read(tail, Replay(PART, place="log", next_number=begin), found)
        return found


def play(seed: int, folder: Path, *, killed: int, trims: bool) -> None:
    """Three writers and two readers in turns; then one more writer, and what everybody has read."""
    story = Story(folder)
    jobs: list[Callable[[], None]] = [
        lambda: story.write(1, 2),
        lambda: story.write(2, 2),
        lambda: story.write(3, 3, failing=1),
        lambda: story.follow(None, 6),
        lambda: story.follow(None, 6),
    ]
    with pytest.MonkeyPatch.context() as patch:
        turns = Turns(seed, jobs, killed=killed)
        interrupt_at_files(patch, turns)
        turns.run()
    assert not turns.failures, turns.failures
    story.write(9, 1)
    found = story.whole(None)
    assert story.acknowledged <= set(found)
    assert [number for _, number in found] == list(range(len(found)))
    for tail, replay, before in story.tails:
        with closing(tail):
            assert before == found[: len(before)]
            if any(each is before for each in story.alive):
                story.read(tail, replay, before)
                assert before == found
    for begin in range(len(found)):
        assert story.whole(begin) == found[begin:]
    if trims:
        for below in range(len(found)):
            first = story.transport().trim(PART, below)
            assert first <= below
            assert story.whole(below) == found[below:]


def interrupt_at_files(patch: pytest.MonkeyPatch, turns: Turns) -> None:
    """Everything that a process does to files, and could be stopped before."""

    def interrupted(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def replacement(*values: Any, **named: Any) -> Any:
            turns.point()
            return original(*values, **named)

        patch.setattr(owner, name, replacement)

    for owner in (file_transport, file_tail, file_lineage):
        for name in ("segments_in", "first_head", "last_record", "piece_at"):
            if hasattr(owner, name):
                interrupted(owner, name)
    interrupted(file_segments, "piece_at")
    interrupted(os, "pwrite")
    interrupted(Path, "unlink")
    interrupted(file_transport.FileTransport, "_claimed")
    patch.setattr(os, "fdatasync", lambda _: turns.point())
    patch.setattr(time, "sleep", lambda _: turns.point())
    patch.setattr(LocalStorage, "sync", lambda _: turns.point())


def lay(folder: Path, *generations: list[tuple[int, int | None]]) -> None:
    """Segments by hand: of each generation the number of its opening and what it follows, then its other numbers."""
    part = folder / "parts" / PART
    part.mkdir(parents=True, exist_ok=True)
    for generation, records in enumerate(generations, 1):
        data = b""
        for place, (number, follows) in enumerate(records):
            claim = Claim(generation, number, follows)
            data += increment(number, generation=generation).encode() if place else opening(claim)
        (part / f"{generation:08d}-000000.log").write_bytes(data)


class TestByHand:
    def test_openings_the_newest_writer_has_not_seen_do_not_count_even_if_other_writers_saw_them(
        self, tmp_path: Path
    ) -> None:
        lay(tmp_path, [(0, 0), (1, None)], [(2, 1)], [(1, 1), (2, None)])
        assert Story(tmp_path).whole(None) == [(1, 0), (3, 1), (3, 2)]
        assert Story(tmp_path).whole(1) == [(3, 1), (3, 2)]

    def test_an_opening_that_came_too_late_does_not_count(self, tmp_path: Path) -> None:
        lay(tmp_path, [(0, 0), (1, None)], [(1, 1)], [(2, 1)])
        assert Story(tmp_path).whole(None) == [(1, 0), (1, 1), (3, 2)]
        assert Story(tmp_path).whole(1) == [(1, 1), (3, 2)]

    def test_acknowledged_records_are_read_while_another_writer_opens_the_part(self, tmp_path: Path) -> None:
        lay(tmp_path, [(0, 0), (1, None)], [])
        story = Story(tmp_path)
        with closing(story.transport().tail(PART, None)) as tail:
            replay, found = Replay(PART, place="log"), list[tuple[int, int]]()
            story.read(tail, replay, found)
            assert found == [(1, 0)]
            lay(tmp_path, [(0, 0), (1, None)], [(2, 1)])
            story.read(tail, replay, found)
            assert found == [(1, 0), (1, 1), (2, 2)]

    def test_openings_of_older_logs_follow_the_one_before_them(self, tmp_path: Path) -> None:
        lay(tmp_path, [(0, None), (1, None)], [], [(1, None), (2, None)], [(3, None)])
        assert Story(tmp_path).whole(None) == [(1, 0), (3, 1), (3, 2), (4, 3)]

    def test_an_opening_that_claims_to_follow_itself_ends_no_reader(self, tmp_path: Path) -> None:
        lay(tmp_path, [(0, 0), (1, None)], [(2, 2)])
        assert Story(tmp_path).whole(None) == [(1, 0), (1, 1), (2, 2)]


@pytest.mark.slow
@pytest.mark.starts_first
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, (1 << 32) - 1), killed=st.integers(0, 4), trims=st.booleans())
def test_all_read_the_same_and_nothing_that_was_acknowledged_is_lost(
    tmp_path_factory: pytest.TempPathFactory, seed: int, killed: int, trims: bool
) -> None:
    play(seed, tmp_path_factory.mktemp("races") / "log", killed=killed, trims=trims)
