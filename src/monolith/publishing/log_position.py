"""Where a delta log was at the cut of a checkpoint, as the checkpoint carries it."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.tables.history import Mark

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_log = logging.getLogger(__name__)

POSITION_NAME = "delta_log"
"""Among the positions of a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """What was in the log before the cut; anything that the cut does not hold was logged behind it."""

    place: str
    """The log."""
    step: int
    """Of the checkpoint: the position of another one, taken over by a run without a log, says nothing."""
    numbers: Mapping[str, int]
    """Part -> number of its last increment before the cut; those of parts that had ended before it are among them."""
    marks: Mapping[str, Mark]
    """Part that was written to -> the mark of its rows at the cut, or a later one: what is logged with it, or with one
    behind it, has all that the cut holds."""

    def to_bytes(self) -> bytes:
        """As a position of a checkpoint."""
        document = {
            "log": self.place,
            "step": self.step,
            "numbers": dict(self.numbers),
            "marks": {part: list(mark) for part, mark in self.marks.items()},
        }
        return json.dumps(document, sort_keys=True).encode()

    @classmethod
    def of_all(cls, texts: Iterable[bytes | None]) -> LogPosition | None:
        """Those that several owners of rows say of one log, as one; None: one of them says nothing."""
        found = [cls.from_bytes(text) for text in texts]
        known = [each for each in found if each is not None]
        if not known or len(known) < len(found):
            return None
        return cls(
            place=known[0].place,
            step=known[0].step,
            numbers={part: number for each in known for part, number in each.numbers.items()},
            marks={part: mark for each in known for part, mark in each.marks.items()},
        )

    @classmethod
    def of_checkpoint(cls, positions: Mapping[str, bytes], *, place: str, step: int) -> LogPosition | None:
        """What a checkpoint says of this log; None: nothing that helps."""
        found = cls.from_bytes(positions.get(POSITION_NAME))
        return found if found is not None and (found.place, found.step) == (place, step) else None

    @classmethod
    def from_bytes(cls, text: bytes | None) -> LogPosition | None:
        """What `to_bytes` wrote; None: nothing, or something else."""
        if not text:
            return None
        try:
            document = json.loads(text)
            return cls(
                place=document["log"],
                step=document["step"],
                numbers={str(part): int(number) for part, number in document["numbers"].items()},
                marks={str(part): Mark(*map(int, mark)) for part, mark in document["marks"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _log.warning("a saved position in a delta log cannot be read, and is left out: %r", error)
            return None
