"""Stores the position of each receiver in a file: a known receiver resumes there, a new one starts at a base."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from monolith.files import replaced_file

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PushPositions", "TargetPosition"]

_log = logging.getLogger(__name__)

_FORMAT = "monolith-push-positions"


@dataclass(slots=True)
class TargetPosition:
    """Position of one receiver."""

    life: str
    """Incarnation of its process, or its version; a different one has lost the pushed rows."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Part of the log -> number of the last acknowledged increment."""


class PushPositions:
    """The positions of all receivers of one log. Not thread-safe.

    Args:
        path: A local file; None: positions are not persisted.
        log: Path or URL of the log; positions of another log are ignored.
    """

    def __init__(self, path: str | None, *, log: str) -> None:
        self._path = None if path is None else Path(path)
        self._log = log
        self._targets = self._read()

    def of(self, target: str, *, life: str) -> TargetPosition:
        """Returns the position of a receiver with this incarnation; an empty one if the incarnation differs."""
        found = self._targets.get(target)
        if found is None or found.life != life:
            found = self._targets[target] = TargetPosition(life)
        return found

    def forget(self, target: str) -> None:
        """Discards the position of a receiver, which then starts at a base."""
        if self._targets.pop(target, None) is not None:
            self.save()

    def keep(self, targets: Iterable[str]) -> None:
        """Discards the positions of all other receivers."""
        wanted = set(targets)
        gone = self._targets.keys() - wanted
        if gone:
            self._targets = {target: found for target, found in self._targets.items() if target in wanted}
            self.save()

    def save(self) -> None:
        """Writes the file atomically."""
        if self._path is None:
            return
        document = {
            "format": _FORMAT,
            "version": 1,
            "log": self._log,
            "targets": {target: asdict(found) for target, found in self._targets.items()},
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(self._path) as place:
            place.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    def _read(self) -> dict[str, TargetPosition]:
        if self._path is None or not self._path.exists():
            return {}
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            if document["format"] != _FORMAT or document["version"] != 1:
                raise ValueError("not positions of version 1")  # noqa: TRY301 - one handler reports every fault
            if document["log"] != self._log:
                _log.warning("push: '%s' is about the log '%s'; receivers begin at a base", self._path, document["log"])
                return {}
            return {
                str(target): TargetPosition(
                    str(each["life"]), {str(part): int(number) for part, number in each["numbers"].items()}
                )
                for target, each in document["targets"].items()
            }
        except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            # Pushing the same rows again costs time, but is harmless.
            _log.warning("push: '%s' cannot be read, receivers begin at a base: %s", self._path, error)
            return {}
