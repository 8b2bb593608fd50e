"""Runs the tests on all drawn mutants, in worker threads that each have a copy of the tree."""

from __future__ import annotations

import os
import queue
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mutation.calls import Calls
from mutation.core_copy import CoreCopy
from mutation.judge import INVALID, Verdict, judge
from mutation.process import Stopped
from mutation.results import Results, digest_of_tests
from mutation.working_copy import WorkingCopy

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable
    from pathlib import Path

    from mutation.areas import Area, Config
    from mutation.mutant import Mutant


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run."""

    jobs: int
    budget: float
    """Seconds of tests per mutant."""
    thorough: bool


@dataclass(slots=True)
class Draw:
    """The mutants of an area in the order in which they are drawn, and the number that is still to be judged."""

    area: Area
    waiting: deque[Mutant]
    remaining: int
    judged: list[tuple[Mutant, Verdict]] = field(default_factory=list)

    def next(self) -> Mutant | None:
        """Draw the next mutant; None if enough mutants are drawn or none is left."""
        if self.remaining <= 0 or not self.waiting:
            return None
        self.remaining -= 1
        return self.waiting.popleft()


class Run:
    """One run. Call `run` once; afterwards ``draws`` has the verdicts, also after a Ctrl-C."""

    def __init__(self, config: Config, root: Path, folder: Path, draws: list[Draw], options: Options) -> None:
        self.draws = draws
        self._config = config
        self._root = root
        self._folder = folder
        self._options = options
        self._results = Results(folder / "results.jsonl")
        self._calls = Calls(folder / "calls", root)
        self._tests = {draw.area.name: digest_of_tests(draw.area, root) for draw in draws}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._copies: dict[str, WorkingCopy] = {}
        self._failure: BaseException | None = None
        self._total = sum(draw.remaining for draw in draws)

    def run(self) -> None:
        """Judge all drawn mutants. A Ctrl-C stops the run and ends every process that it started."""
        self._load_verdicts()
        drawn = [draw for draw in self.draws if draw.remaining and draw.waiting]
        files = list(dict.fromkeys(file for draw in drawn for file in draw.area.test_files(self._root)))
        unrecorded: queue.SimpleQueue[str] = queue.SimpleQueue()
        for file in files:
            if not self._calls.load(file):
                unrecorded.put(file)
        _log(f"{unrecorded.qsize()} of {len(files)} test files run once to record their calls")
        self._in_threads(lambda number: self._record(unrecorded, number))
        if self._calls.failing:
            _log(f"fail without a mutant and are ignored: {', '.join(sorted(set(self._calls.failing)))}")
        self._in_threads(self._judge)

    def _load_verdicts(self) -> None:
        for draw in self.draws:
            for mutant in list(draw.waiting):
                if draw.remaining <= 0:
                    break
                if (verdict := self._results.get(mutant, self._tests[draw.area.name])) is not None:
                    draw.waiting.remove(mutant)
                    draw.judged.append((mutant, verdict))
                    draw.remaining -= verdict.outcome != INVALID

    def _in_threads(self, work: Callable[[int], None]) -> None:
        def guarded(number: int) -> None:
            try:
                work(number)
            except Stopped:
                pass
            except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
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

    def _record(self, unrecorded: queue.SimpleQueue[str], number: int) -> None:
        while not self._stop.is_set():
            try:
                file = unrecorded.get_nowait()
            except queue.Empty:
                return
            _log(self._calls.record(file, self._copy(WorkingCopy, number)))

    def _judge(self, number: int) -> None:
        # Half of the workers start at the end of the list, where the areas that need a build are.
        draws = self.draws if number % 2 == 0 else self.draws[::-1]
        for draw in draws:
            while not self._stop.is_set():
                with self._lock:
                    mutant = draw.next()
                if mutant is None:
                    break
                self._judge_one(draw, mutant, number)

    def _judge_one(self, draw: Draw, mutant: Mutant, number: int) -> None:
        selection = self._calls.select(mutant, draw.area, budget=self._options.budget, thorough=self._options.thorough)
        copy = self._copy(CoreCopy if draw.area.is_cpp else WorkingCopy, number)
        verdict = judge(mutant, selection, copy)
        self._results.add(mutant, self._tests[draw.area.name], verdict)
        with self._lock:
            draw.judged.append((mutant, verdict))
            draw.remaining += verdict.outcome == INVALID
            num_valid = sum(judged.outcome != INVALID for other in self.draws for _, judged in other.judged)
        _log(f"[{num_valid}/{self._total}] {verdict.outcome} {mutant} ({verdict.seconds} s; {verdict.reason})")

    def _copy(self, kind: type[WorkingCopy], number: int) -> WorkingCopy:
        """Return the copy of this kind that belongs to a worker; it is made on first use."""
        name = f"{'core' if kind is CoreCopy else 'python'}-{number}"
        with self._lock:
            copy = self._copies.get(name)
        if copy is None:
            threads = max(1, (os.cpu_count() or 1) // self._options.jobs)
            copy = kind(self._config, self._root, self._folder / name, stop=self._stop, threads=threads)
            with self._lock:
                self._copies[name] = copy
        return copy


def _log(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
