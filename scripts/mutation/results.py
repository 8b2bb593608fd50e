"""What became of every mutant, kept line by line so that a run can be taken up again, and the list of survivors."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING

from mutation.judge import ALIVE, INVALID, KILLED, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mutation.mutant import Mutant
    from mutation.rooms import Equivalent, Room


class Results:
    """The verdicts of this run and of earlier ones; any thread may add to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._verdicts: dict[str, tuple[str, Verdict]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                record = json.loads(line)
                self._verdicts[record["key"]] = record["tests"], Verdict(**record["verdict"])

    def get(self, mutant: Mutant, tests: str) -> Verdict | None:
        """The verdict on a mutant; a survivor is judged again when the tests have changed."""
        found, verdict = self._verdicts.get(mutant.key, ("", None))
        return None if verdict is None or (verdict.outcome == ALIVE and found != tests) else verdict

    def add(self, mutant: Mutant, tests: str, verdict: Verdict) -> None:
        """Keep a verdict, on the disk too."""
        record = {"key": mutant.key, "mutant": str(mutant), "tests": tests, "verdict": asdict(verdict)}
        with self._lock:
            self._verdicts[mutant.key] = tests, verdict
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


def digest_of_tests(room: Room, root: Path) -> str:
    """Changes with the tests that may judge a room."""
    digest = hashlib.sha256()
    places = [root / name for name in room.tests] + ([root / "core"] if room.is_cpp else [])
    files = [file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("*")))]
    for file in files:
        if file.suffix == ".py" or file.name.endswith("_test.cc"):
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def summary(judged: Iterable[tuple[Mutant, Verdict]], equivalents: list[Equivalent]) -> tuple[str, int, int]:
    """A page for people, how many mutants live without a reason, and how many were tried."""
    tried = [(mutant, verdict) for mutant, verdict in judged if verdict.outcome != INVALID]
    alive = [(mutant, verdict) for mutant, verdict in tried if verdict.outcome == ALIVE]
    by_right = [(mutant, each) for mutant, _ in alive for each in equivalents if each.is_of(mutant)]
    excused = {mutant.key for mutant, _ in by_right}
    without = [(mutant, verdict) for mutant, verdict in alive if mutant.key not in excused]
    lines = ["| Room | Mutants | Killed | Alive |", "|---|---|---|---|"]
    for room in dict.fromkeys(mutant.room for mutant, _ in tried):
        outcomes = [verdict.outcome for mutant, verdict in tried if mutant.room == room]
        lines.append(f"| {room} | {len(outcomes)} | {outcomes.count(KILLED)} | {outcomes.count(ALIVE)} |")
    lines.append(f"| all | {len(tried)} | {len(tried) - len(alive)} | {len(alive)} |")
    lines += ["", f"Alive: {len(without)}"]
    lines += [f"- {mutant} ({verdict.reason})\n      {mutant.source_line}" for mutant, verdict in without]
    lines += ["", f"Alive by right: {len(by_right)}"]
    lines += [f"- {mutant}: {each.reason}" for mutant, each in by_right]
    return "\n".join(lines), len(without), len(tried)
