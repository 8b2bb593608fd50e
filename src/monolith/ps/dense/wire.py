"""Messages between dense clients and shards. Heads are JSON, or eight bytes for a pull; bodies are raw numbers.

| kind | head | body | answer's head | answer's body |
|---|---|---|---|---|
| CONFIGURE | origin, layout_bytes | the layout as JSON, then all pieces, or nothing | configured, origin, age_ms | |
| JOIN | worker | | incarnation, applied, others | |
| PULL | worker, region | | the worker's last batch in it | the pieces of the region |
| PUSH | stamp, previous, incarnation, step, present, rates | gradients of present pieces | is_new, applied, others | |
| FREEZE | ticket | | bytes, index_bytes, stamps | |
| FETCH | ticket, begin, end | | | those bytes of the frozen state |
| RELEASE | ticket | | | |
| LOAD | ticket, bytes, begin | bytes of a state from `begin` on | | |
| RESUME | ticket, index_bytes, stamps | | | |

`others` is the number of batches that the shard has applied of all other workers.
All calls are idempotent: after a broken connection a client repeats those without an answer.
"""

from __future__ import annotations

import base64
import json
import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from monolith.errors import DataLossError, InvalidArgumentError
from monolith.tables import BatchStamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

WORDS = b"dense"
"""Handshake of a connection for dense weights."""
_PULL = struct.Struct("<ii")
_SEEN = struct.Struct("<q")


class Kind(IntEnum):
    """Kind of a call; the numbers are part of the wire format."""

    CONFIGURE = 64
    JOIN = 65
    PULL = 66
    PUSH = 67
    FREEZE = 68
    FETCH = 69
    RELEASE = 70
    LOAD = 71
    RESUME = 72


class FrameCall(Protocol):
    """A call in flight; implemented by `_core.FrameCall`."""

    @property
    def done(self) -> bool:
        """Whether `wait` returns immediately."""

    def wait(self) -> tuple[bytes, bytes]:
        """Returns head and body of the answer; raises the server's error."""


class DenseFrames(Protocol):
    """A connection to every server; implemented by `_core.FrameClient`."""

    def begin(
        self, server: int, kind: int, head: bytes, parts: Sequence[Any], into: Any | None, timeout_seconds: float
    ) -> FrameCall:
        """Sends a call; a server answers the calls of a client in order."""

    def close(self) -> None:
        """Closes the connection."""


class DenseServers(Protocol):
    """The servers of a model, as needed for dense weights."""

    @property
    def num_ps(self) -> int:
        """Number of servers."""

    def open_frames(self, words: bytes) -> DenseFrames:
        """Opens a connection to each server."""

    def uninitialized(self, owner: str) -> list[int]:
        """Returns the servers on which the owner was not initialized since their process began."""

    def require_state(self, owner: str) -> None:
        """Raises UnavailableError if a server has lost the state of an owner."""

    def set_initialized(self, owner: str) -> None:
        """Marks the owner as initialized on all servers."""


def ask_all(
    frames: DenseFrames, num_ps: int, kind: Kind, head_of: Callable[[int], bytes], timeout_seconds: float
) -> list[dict[str, Any]]:
    """Sends one call to each server, before it waits for answers; returns the heads of the answers."""
    calls = [frames.begin(server, kind, head_of(server), [], None, timeout_seconds) for server in range(num_ps)]
    heads = [call.wait()[0] for call in calls]
    return [decode(head) if head else {} for head in heads]


def encode(**values: Any) -> bytes:
    """Encodes a head."""
    return json.dumps(values, separators=(",", ":")).encode()


def decode(head: bytes) -> dict[str, Any]:
    """Decodes the result of `encode`.

    Raises:
        DataLossError: the bytes are no head.
    """
    try:
        values = json.loads(head)
    except ValueError as error:
        raise DataLossError(f"dense weights: not the head of a call: {head[:80]!r}") from error
    if not isinstance(values, dict):
        raise DataLossError(f"dense weights: not the head of a call: {head[:80]!r}")
    return values


def encode_pull(worker: int, region: int) -> bytes:
    """Encodes the head of a pull."""
    return _PULL.pack(worker, region)


def decode_pull(head: bytes) -> tuple[int, int]:
    """Returns worker and region of a pull."""
    if len(head) != _PULL.size:
        raise InvalidArgumentError(f"dense weights: the head of a pull has {_PULL.size} bytes, got {len(head)}")
    worker, region = _PULL.unpack(head)
    return worker, region


def encode_seen(seq: int) -> bytes:
    """Encodes the head of a pull's answer."""
    return _SEEN.pack(seq)


def decode_seen(head: bytes) -> int:
    """Returns the last batch of the worker in a pull's answer; -1: none."""
    seq: int = _SEEN.unpack(head)[0]
    return seq


def encode_stamps(stamps: Iterable[BatchStamp]) -> list[list[Any]]:
    """Encodes stamps as plain values."""
    return [
        [stamp.worker, stamp.seq, base64.b64encode(stamp.position).decode(), stamp.event_time_ms] for stamp in stamps
    ]


def decode_stamps(values: Sequence[Sequence[Any]]) -> list[BatchStamp]:
    """Decodes the result of `encode_stamps`."""
    return [
        BatchStamp(
            worker=int(worker),
            seq=int(seq),
            position=base64.b64decode(position, validate=True),
            event_time_ms=int(event_time_ms),
        )
        for worker, seq, position, event_time_ms in values
    ]


def field(values: Mapping[str, Any], name: str) -> int:
    """Returns an integer of a head.

    Raises:
        InvalidArgumentError: the value is no integer.
    """
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgumentError(f"dense weights: {name} must be an integer, got {value!r}")
    return value
