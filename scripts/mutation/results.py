"""Stores the verdict on every mutant, one line each, so that a stopped run can resume; writes the list of survivors."""

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

    from mutation.areas import Area, Equivalent
    from mutation.mutant import Mutant


class Results:
    """The verdicts of this run and of earlier runs; any thread may add one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._verdicts: dict[str, tuple[str, Verdict]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                record = json.loads(line)
                self._verdicts[record["key"]] = record["tests"], Verdict(**record["verdict"])

    def get(self, mutant: Mutant, tests: str) -> Verdict | None:
        """Return the stored verdict; None if there is none, or if the mutant survived other versions of the tests."""
        stored_tests, verdict = self._verdicts.get(mutant.key, ("", None))
        return None if verdict is None or (verdict.outcome == ALIVE and stored_tests != tests) else verdict

    def add(self, mutant: Mutant, tests: str, verdict: Verdict) -> None:
        """Store a verdict and append it to the file."""
        record = {"key": mutant.key, "mutant": str(mutant), "tests": tests, "verdict": asdict(verdict)}
        with self._lock:
            self._verdicts[mutant.key] = tests, verdict
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


def digest_of_tests(area: Area, root: Path) -> str:
    """Return a digest of all tests of an area."""
    digest = hashlib.sha256()
    folders = [root / name for name in area.tests] + ([root / "core"] if area.is_cpp else [])
    files = [file for path in folders for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    for file in files:
        if file.suffix == ".py" or file.name.endswith("_test.cc"):
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def summary(judged: Iterable[tuple[Mutant, Verdict]], equivalents: list[Equivalent]) -> tuple[str, int, int]:
    """Return the report, the number of survivors that are not listed as equivalent, and the number of valid mutants."""
    valid = [(mutant, verdict) for mutant, verdict in judged if verdict.outcome != INVALID]
    alive = [(mutant, verdict) for mutant, verdict in valid if verdict.outcome == ALIVE]
    explained = [(mutant, entry) for mutant, _ in alive for entry in equivalents if entry.matches(mutant)]
    explained_keys = {mutant.key for mutant, _ in explained}
    survivors = [(mutant, verdict) for mutant, verdict in alive if mutant.key not in explained_keys]
    lines = ["| Area | Mutants | Killed | Alive |", "|---|---|---|---|"]
    for area in dict.fromkeys(mutant.area for mutant, _ in valid):
        outcomes = [verdict.outcome for mutant, verdict in valid if mutant.area == area]
        lines.append(f"| {area} | {len(outcomes)} | {outcomes.count(KILLED)} | {outcomes.count(ALIVE)} |")
    lines.append(f"| all | {len(valid)} | {len(valid) - len(alive)} | {len(alive)} |")
    lines += ["", f"Alive: {len(survivors)}"]
    lines += [f"- {mutant} ({verdict.reason})\n      {mutant.source_line}" for mutant, verdict in survivors]
    lines += ["", f"Equivalent: {len(explained)}"]
    lines += [f"- {mutant}: {entry.reason}" for mutant, entry in explained]
    return "\n".join(lines), len(survivors), len(valid)
