"""The whole run: mutants drawn for every room, given to workers that each own a copy of the tree."""

from __future__ import annotations

import os
import queue
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mutation.calls import Calls
from mutation.core_place import CorePlace
from mutation.judge import INVALID, Verdict, judge
from mutation.process import Stopped
from mutation.results import Results, digest_of_tests
from mutation.workplace import Workplace

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable
    from pathlib import Path

    from mutation.mutant import Mutant
    from mutation.rooms import Room, Rooms


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is done."""

    jobs: int
    budget: float
    """Seconds of tests that a mutant is given."""
    thorough: bool


@dataclass(slots=True)
class Draw:
    """The mutants of a room in the order in which they are drawn, and how many are to be judged."""

    room: Room
    waiting: deque[Mutant]
    wanted: int
    judged: list[tuple[Mutant, Verdict]] = field(default_factory=list)

    def next(self) -> Mutant | None:
        """One more to judge; None when there are enough or no more."""
        if self.wanted <= 0 or not self.waiting:
            return None
        self.wanted -= 1
        return self.waiting.popleft()


class Run:
    """One run; `do` may be called once. What was judged is in ``draws``, also after a Ctrl-C."""

    def __init__(self, rooms: Rooms, root: Path, folder: Path, draws: list[Draw], options: Options) -> None:
        self.draws = draws
        self._rooms = rooms
        self._root = root
        self._folder = folder
        self._options = options
        self._results = Results(folder / "results.jsonl")
        self._calls = Calls(folder / "calls", root)
        self._tests = {draw.room.name: digest_of_tests(draw.room, root) for draw in draws}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._made: dict[str, Workplace] = {}
        self._failure: BaseException | None = None
        self._total = sum(draw.wanted for draw in draws)

    def do(self) -> None:
        """Judge everything that is drawn; a Ctrl-C ends it early, with nothing left running."""
        self._take_known()
        drawn = [draw for draw in self.draws if draw.wanted and draw.waiting]
        files = list(dict.fromkeys(file for draw in drawn for file in draw.room.test_files(self._root)))
        unknown: queue.SimpleQueue[str] = queue.SimpleQueue()
        for file in files:
            if not self._calls.is_known(file):
                unknown.put(file)
        _tell(f"{unknown.qsize()} of {len(files)} test files are run once to see what they call")
        self._in_threads(lambda number: self._learn(unknown, number))
        if self._calls.failing:
            _tell(f"fail without a mutant, and judge nothing: {', '.join(sorted(set(self._calls.failing)))}")
        self._in_threads(self._judge)

    def _take_known(self) -> None:
        for draw in self.draws:
            for mutant in list(draw.waiting):
                if draw.wanted <= 0:
                    break
                if (verdict := self._results.get(mutant, self._tests[draw.room.name])) is not None:
                    draw.waiting.remove(mutant)
                    draw.judged.append((mutant, verdict))
                    draw.wanted -= verdict.outcome != INVALID

    def _in_threads(self, work: Callable[[int], None]) -> None:
        def guarded(number: int) -> None:
            try:
                work(number)
            except Stopped:
                pass
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
                self._failure = error
                self._stop.set()

        threads = [threading.Thread(target=guarded, args=(number,)) for number in range(self._options.jobs)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            self._stop.set()
            for thread in threads:
                thread.join()
            raise
        if self._failure is not None:
            raise self._failure

    def _learn(self, unknown: queue.SimpleQueue[str], number: int) -> None:
        while not self._stop.is_set():
            try:
                file = unknown.get_nowait()
            except queue.Empty:
                return
            _tell(self._calls.learn(file, self._place(Workplace, number)))

    def _judge(self, number: int) -> None:
        # Half of the workers begin at the other end, where the rooms are that take a build.
        draws = self.draws if number % 2 == 0 else self.draws[::-1]
        for draw in draws:
            while not self._stop.is_set():
                with self._lock:
                    mutant = draw.next()
                if mutant is None:
                    break
                self._judge_one(draw, mutant, number)

    def _judge_one(self, draw: Draw, mutant: Mutant, number: int) -> None:
        choice = self._calls.choose(mutant, draw.room, budget=self._options.budget, thorough=self._options.thorough)
        place = self._place(CorePlace if draw.room.is_cpp else Workplace, number)
        verdict = judge(mutant, choice, place)
        self._results.add(mutant, self._tests[draw.room.name], verdict)
        with self._lock:
            draw.judged.append((mutant, verdict))
            draw.wanted += verdict.outcome == INVALID
            done = sum(each.outcome != INVALID for every in self.draws for _, each in every.judged)
        _tell(f"[{done}/{self._total}] {verdict.outcome} {mutant} ({verdict.seconds} s; {verdict.reason})")

    def _place(self, kind: type[Workplace], number: int) -> Workplace:
        """This worker's copy of a kind, made when it is first needed."""
        name = f"{'core' if kind is CorePlace else 'python'}-{number}"
        with self._lock:
            place = self._made.get(name)
        if place is None:
            threads = max(1, (os.cpu_count() or 1) // self._options.jobs)
            place = kind(self._rooms, self._root, self._folder / name, stop=self._stop, threads=threads)
            with self._lock:
                self._made[name] = place
        return place


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
