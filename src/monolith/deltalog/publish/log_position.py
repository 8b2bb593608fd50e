"""The position of a delta log at the cut of a checkpoint, stored in it; the checkpoint becomes a base of the log."""

from __future__ import annotations

import json
import logging
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.checkpoint import SavedState, checkpoint_exists
from monolith.deltalog import Base, store_of
from monolith.files import basename
from monolith.tables import ChangePosition
from monolith.tables.snapshot import open_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from monolith.deltalog import DeltaLog

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


def add_checkpoint_base(log: DeltaLog, path: str) -> Base | None:
    """Adds a checkpoint of the run that writes a log as a base; removes bases whose checkpoints were deleted.

    Args:
        log: Log of the run.
        path: The prefix of the checkpoint.

    Returns:
        The base; None if the checkpoint does not contain the position of the log, or no part of it.

    Raises:
        NotFoundError: the checkpoint does not exist.
        OpError: the log is unreachable.
    """
    base = _base_of(log, path)
    if base is not None:
        log.add_base(base)
    for existing in log.bases():
        if existing.kind == "checkpoint" and not checkpoint_exists(existing.path):
            log.remove_base(existing.name)
    return base


def _base_of(log: DeltaLog, path: str) -> Base | None:
    saved = SavedState(path)
    manifest = saved.manifest
    position = LogPosition.of_checkpoint(manifest.positions, place=log.place, step=manifest.step)
    if position is None:
        return None
    buckets = {}
    for store, tables in manifest.tables.items():
        with closing(open_source(saved.folder.place(tables.folder))) as source:
            buckets[store] = source.manifest.buckets
    numbers = {part: number for part, number in position.numbers.items() if _is_held(part, buckets)}
    if not numbers:
        return None
    return Base(
        name=f"checkpoint-{basename(path)}",
        kind="checkpoint",
        path=path,
        numbers=numbers,
        stores={store: store for store in buckets},
        created_ms=int(1000 * manifest.created),
        step=manifest.step,
    )


def _is_held(part: str, buckets: dict[str, range]) -> bool:
    """Returns whether the checkpoint has all rows of a part; it always has the dense weights."""
    rows = store_of(part)
    if rows is None:
        return True
    held = buckets.get(rows[0])
    return held is not None and held.start <= rows[1].start and rows[1].stop <= held.stop
