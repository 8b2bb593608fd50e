"""One run of pushes to one receiver: from its position to the end of the log, or to the first error.

`PushPositions` stores the position of each receiver in a file: a known receiver resumes there, a new one starts at a
base.
"""

from __future__ import annotations

import json
import logging
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from monolith.config import Config, config, require_positive
from monolith.deltalog import Base, GapError, IncrementKind
from monolith.errors import (
    AbortedError,
    DataLossError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    UnimplementedError,
)
from monolith.files import replaced_file
from monolith.serving.push.log_rows import PART_BYTES, assign_request, keys_request, removed_rows, split_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from monolith.clock import Clock
    from monolith.rpc import ClientCredentials
    from monolith.serving.protos.prediction_service_pb2 import PredictRequest
    from monolith.serving.push.log_rows import BaseRows, LogRows, PushSignature, StoreRows
    from monolith.serving.shards.channels import ShardAnswer, ShardChannels
    from monolith.tables import TableConfig

_log = logging.getLogger(__name__)


@config
class PushConfig(Config):
    """Keyword arguments of `ParameterSyncClient`."""

    timeout_seconds: float = 3.0
    """Timeout of one request."""
    part_bytes: int = PART_BYTES
    """Maximum size of a request."""
    signature: PushSignature = "raw_assign"
    """Signature for the rows: all tables together, or by table."""
    positions: str | None = None
    """File for the positions of receivers; None: after a restart every receiver starts at a base."""
    tables: Mapping[str, Mapping[str, TableConfig]] | None = None
    """Store -> configs of its serving tables; None: from the schema of the log."""
    credentials: ClientCredentials | None = None
    """Credentials for the receivers."""
    clock: Clock | None = None

    def __post_init__(self) -> None:
        require_positive(self, "timeout_seconds", "part_bytes")


class Receivers(NamedTuple):
    """What the runs to all receivers of a shard share."""

    channels: ShardChannels
    model: str
    """Model name at the receivers."""
    config: PushConfig
    positions: PushPositions
    clock: Clock


class TargetRun:
    """One run of pushes to one receiver; for a single use."""

    def __init__(self, target: str, rows: LogRows, receivers: Receivers, *, deadline: float) -> None:
        self._rows = rows
        self._channels, self._model, self._config, self._positions, self._clock = receivers
        self._target = target
        self._deadline = deadline
        self._life = ""
        self._reports_keys = True  # until the receiver does not support it
        self.num_ids = 0
        """Number of rows that the receiver has acknowledged."""

    def push(self, parts: Sequence[str]) -> None:
        """Pushes all parts; those that must precede others come first."""
        self._life = self._channels.life_of(self._target, self._model, self._config.timeout_seconds)
        position = self._positions.of(self._target, life=self._life)
        waiting = list(parts)
        while waiting:
            due = [part for part in waiting if self._is_due(part, position, waiting)] or waiting
            for part in due:
                self._push_part(part, position)
            waiting = [part for part in waiting if part not in due]

    def _is_due(self, part: str, position: TargetPosition, waiting: Sequence[str]) -> bool:
        """Returns whether everything that must precede the base of this part was pushed."""
        base = None if part in position.numbers else self._rows.base_of(part)
        return base is None or not (set(base.after) & set(waiting)) - {part}

    def _push_part(self, part: str, position: TargetPosition) -> None:
        if part not in position.numbers:
            self._begin(part, position, at_least=-1)
        try:
            self._push_increments(part, position)
        except (GapError, DataLossError) as error:
            _log.warning("push to %s: restarts from a base: %s", self._target, error)
            reached, extent = position.numbers[part], self._rows.log.extent(part)
            if extent is not None and extent.next > reached:
                self._begin(part, position, at_least=reached + 1, why=error)
            else:
                self._begin(part, position, at_least=-1)  # the log was recreated
            self._push_increments(part, position)

    def _begin(self, part: str, position: TargetPosition, *, at_least: int, why: OpError | None = None) -> None:
        """Pushes all rows of the newest base; without a base the log must contain its first increment."""
        base = self._rows.base_of(part)
        if base is None or base.numbers[part] < at_least:
            if why is not None:
                raise why
            self._reach(part, position, -1)
            return
        self._give_base(part, base)
        self._reach(part, position, base.numbers[part])

    def _give_base(self, part: str, base: Base) -> None:
        for piece in self._rows.of_base(part, base):
            self._give(piece.rows)
            self._remove(piece)

    def _remove(self, piece: BaseRows) -> None:
        """Pushes zeros for ids that the receiver has and the base does not."""
        if not self._reports_keys:
            return
        request = keys_request(piece.rows.store, piece.buckets, model=self._model)
        try:
            gone = removed_rows(piece.rows, piece.known, self._ask(request).response)
        except (NotFoundError, InvalidArgumentError, UnimplementedError, InternalError) as error:
            _log.warning("push to %s: ids that were removed before its base may stay: %s", self._target, error)
            self._reports_keys = False
            return
        self._give(gone)

    def _push_increments(self, part: str, position: TargetPosition) -> None:
        with closing(self._rows.open_reader(part, position.numbers[part])) as reader:
            for increment in reader:
                if increment.kind is IncrementKind.OPENING and increment.base is not None:
                    self._give_base(part, self._named_base(increment.base))
                rows = self._rows.of_increment(increment)
                if rows is not None:
                    self._give(rows)
                self._reach(part, position, increment.number)

    def _named_base(self, name: str) -> Base:
        try:
            return self._rows.log.base(name)
        except NotFoundError as error:
            raise GapError(
                f"push: a generation begins with base {name!r}, which does not exist: {error.message}"
            ) from error

    def _give(self, rows: StoreRows) -> None:
        for part in split_rows(rows, at_most=self._config.part_bytes):
            self._ask(assign_request(part, model=self._model, signature=self._config.signature))
            self.num_ids += part.num_ids

    def _ask(self, request: PredictRequest) -> ShardAnswer:
        left = self._deadline - self._clock.monotonic()
        if left <= 0:
            raise DeadlineExceededError("push: the run has reached its limit, and resumes with the next one")
        timeout = min(left, self._config.timeout_seconds)
        answer = self._channels.predict(self._target, request, timeout).result()
        if answer.life is not None and answer.life != self._life:
            self._positions.forget(self._target)
            raise AbortedError("push: the receiver restarted during the push; the next run starts from a base")
        return answer

    def _reach(self, part: str, position: TargetPosition, number: int) -> None:
        position.numbers[part] = number
        self._positions.save()


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

    Without a path, positions are not persisted; those of another log are ignored.
    """

    def __init__(self, path: str | None, *, log: str) -> None:
        self._path = None if path is None else Path(path)
        self._log = log
        self._targets = self._read()

    def of(self, target: str, *, life: str) -> TargetPosition:
        """Returns the position of a receiver with this incarnation; an empty one if the incarnation differs."""
        position = self._targets.get(target)
        if position is None or position.life != life:
            position = self._targets[target] = TargetPosition(life)
        return position

    def forget(self, target: str) -> None:
        """Discards the position of a receiver, which then starts at a base."""
        if self._targets.pop(target, None) is not None:
            self.save()

    def keep(self, targets: Iterable[str]) -> None:
        """Discards the positions of all other receivers."""
        kept = set(targets)
        gone = self._targets.keys() - kept
        if gone:
            self._targets = {target: position for target, position in self._targets.items() if target in kept}
            self.save()

    def save(self) -> None:
        """Writes the file atomically."""
        if self._path is None:
            return
        document = {
            "format": _FORMAT,
            "version": 1,
            "log": self._log,
            "targets": {target: asdict(position) for target, position in self._targets.items()},
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
                    str(fields["life"]), {str(part): int(number) for part, number in fields["numbers"].items()}
                )
                for target, fields in document["targets"].items()
            }
        except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            # Pushing the same rows again costs time, but is harmless.
            _log.warning("push: '%s' cannot be read, receivers begin at a base: %s", self._path, error)
            return {}
