"""What dense clients and shards say to each other. Heads are JSON, of a pull eight bytes; bodies are raw numbers.

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

`others` is the number of batches that the shard has of all other workers.
A client may say everything twice: after a broken connection it repeats what was not answered.
"""

from __future__ import annotations

import base64
import json
import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from monolith.errors import DataLossError, InvalidArgumentError
from monolith.tables.batch import BatchStamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["WORDS", "DenseFrames", "DenseServers", "FrameCall", "Kind"]

WORDS = b"dense"
"""How a conversation about dense weights is greeted."""
_PULL = struct.Struct("<ii")
_SEEN = struct.Struct("<q")


class Kind(IntEnum):
    """Which call it is; the numbers are part of the wire."""

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
    """A call under way; `_core.FrameCall` is one."""

    @property
    def done(self) -> bool:
        """Whether `wait` returns at once."""
        ...

    def wait(self) -> tuple[bytes, bytes]:
        """The answer's head and body; raises the server's error."""
        ...


class DenseFrames(Protocol):
    """A conversation with every server; `_core.FrameClient` is one."""

    def begin(
        self, server: int, kind: int, head: bytes, parts: Sequence[Any], into: Any | None, timeout_seconds: float
    ) -> FrameCall:
        """Sends a call; those to one server are answered in their order."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


class DenseServers(Protocol):
    """The servers of a model, as far as dense weights need them."""

    @property
    def num_ps(self) -> int:
        """How many there are."""
        ...

    def open_frames(self, words: bytes) -> DenseFrames:
        """A new conversation with each of them."""
        ...

    def uninitialized(self, owner: str) -> list[int]:
        """Servers of which nobody has said, since they began, that this owner has state there."""
        ...

    def require_state(self, owner: str) -> None:
        """Raises UnavailableError where one has lost what it had of it."""
        ...

    def set_initialized(self, owner: str) -> None:
        """It has state on all of them from now on."""
        ...


def ask_all(
    frames: DenseFrames, num_ps: int, kind: Kind, head_of: Callable[[int], bytes], timeout_seconds: float
) -> list[dict[str, Any]]:
    """The heads of all servers' answers to one call each, sent before any is waited for."""
    calls = [frames.begin(server, kind, head_of(server), [], None, timeout_seconds) for server in range(num_ps)]
    heads = [call.wait()[0] for call in calls]
    return [decode(head) if head else {} for head in heads]


def encode(**values: Any) -> bytes:
    """A head."""
    return json.dumps(values, separators=(",", ":")).encode()


def decode(head: bytes) -> dict[str, Any]:
    """What `encode` was given.

    Raises:
        DataLossError: it is no head.
    """
    try:
        values = json.loads(head)
    except ValueError as error:
        raise DataLossError(f"dense weights: not the head of a call: {head[:80]!r}") from error
    if not isinstance(values, dict):
        raise DataLossError(f"dense weights: not the head of a call: {head[:80]!r}")
    return values


def encode_pull(worker: int, region: int) -> bytes:
    """The head of a pull."""
    return _PULL.pack(worker, region)


def decode_pull(head: bytes) -> tuple[int, int]:
    """Worker and region of a pull."""
    if len(head) != _PULL.size:
        raise InvalidArgumentError(f"dense weights: the head of a pull has {_PULL.size} bytes, got {len(head)}")
    worker, region = _PULL.unpack(head)
    return worker, region


def encode_seen(seq: int) -> bytes:
    """The head of a pull's answer."""
    return _SEEN.pack(seq)


def decode_seen(head: bytes) -> int:
    """The last batch of the worker that a pull has seen; -1: none."""
    seq: int = _SEEN.unpack(head)[0]
    return seq


def encode_stamps(stamps: Iterable[BatchStamp]) -> list[list[Any]]:
    """Stamps as plain values."""
    return [[each.worker, each.seq, base64.b64encode(each.position).decode(), each.event_time_ms] for each in stamps]


def decode_stamps(values: Sequence[Sequence[Any]]) -> list[BatchStamp]:
    """What `encode_stamps` was given."""
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
    """A whole number of a head.

    Raises:
        InvalidArgumentError: it is none.
    """
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgumentError(f"dense weights: {name} must be a whole number, got {value!r}")
    return value
