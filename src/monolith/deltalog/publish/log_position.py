"""The position of a delta log at the cut of a checkpoint, as stored in the checkpoint."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.tables import ChangePosition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_log = logging.getLogger(__name__)

POSITION_NAME = "delta_log"
"""Key of the log position among the positions of a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """What was in the log before the cut. Every change that the cut does not contain is logged after this position."""

    place: str
    """Path or URL of the log."""
    step: int
    """Step of the checkpoint. A position copied from another checkpoint by a run without a log is invalid."""
    numbers: Mapping[str, int]
    """Part -> number of its last increment before the cut, including parts that had ended before it."""
    marks: Mapping[str, ChangePosition]
    """Part with an active writer -> the mark of its rows at the cut, or a later one: the log up to an increment with
    this or a later mark contains all that the cut contains."""

    def to_bytes(self) -> bytes:
        """Encodes the position for a checkpoint."""
        document = {
            "log": self.place,
            "step": self.step,
            "numbers": dict(self.numbers),
            "marks": {part: list(mark) for part, mark in self.marks.items()},
        }
        return json.dumps(document, sort_keys=True).encode()

    @classmethod
    def of_all(cls, texts: Iterable[bytes | None]) -> LogPosition | None:
        """Merges the positions of one log from several owners of rows; None if any of them has none."""
        positions = [cls.from_bytes(text) for text in texts]
        known = [position for position in positions if position is not None]
        if not known or len(known) < len(positions):
            return None
        return cls(
            place=known[0].place,
            step=known[0].step,
            numbers={part: number for position in known for part, number in position.numbers.items()},
            marks={part: mark for position in known for part, mark in position.marks.items()},
        )

    @classmethod
    def of_checkpoint(cls, positions: Mapping[str, bytes], *, place: str, step: int) -> LogPosition | None:
        """Returns the position of this log in a checkpoint; None if there is none that matches."""
        position = cls.from_bytes(positions.get(POSITION_NAME))
        return position if position is not None and (position.place, position.step) == (place, step) else None

    @classmethod
    def from_bytes(cls, text: bytes | None) -> LogPosition | None:
        """Decodes what `to_bytes` wrote; None if the text is missing or something else."""
        if not text:
            return None
        try:
            document = json.loads(text)
            return cls(
                place=document["log"],
                step=document["step"],
                numbers={str(part): int(number) for part, number in document["numbers"].items()},
                marks={str(part): ChangePosition(*map(int, mark)) for part, mark in document["marks"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _log.warning("ignoring a saved position in a delta log that cannot be parsed: %r", error)
            return None
