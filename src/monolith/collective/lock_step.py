"""Agreement of the ranks on their next call, as part of the exchange of sizes that they need anyway.

Each call begins with one small exchange: every rank sends every other a digest of its call, whether it takes part
without data (*idle*), some flags, and how many rows it is about to send. Ranks that disagree all get the same error,
with both sides, before any data moves, and the run can continue after it. Without idle ranks no further message is
needed.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch

from monolith.collective.serial_executor import RaisedByAllError
from monolith.collective.wire import number_of
from monolith.errors import FailedPreconditionError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from monolith.collective.serial_executor import LineCall, SerialExecutor

T = TypeVar("T")

_CALL_BYTES = 512
"""Maximum length of the description of its call that a disagreeing rank sends."""
_FLAG_BITS = 62
_SHOWN_BYTES = 128
"""Longer arguments are not shown in messages."""


class Call(NamedTuple):
    """A call that all ranks are about to make; they compare all fields."""

    kind: str
    """Name by which idle ranks find their handler."""
    subject: str = ""
    """Object of the call, for messages."""
    arguments: bytes = b""
    """Data of the call for idle ranks."""

    def __str__(self) -> str:
        text = f"{self.kind} {self.subject}".strip()
        if len(self.arguments) > _SHOWN_BYTES:
            return f"{text} with {len(self.arguments)} bytes of arguments, digest {_digest(self.arguments):x}"
        return f"{text} with arguments {self.arguments!r}" if self.arguments else text

    def encoded(self) -> bytes:
        """Returns all fields as bytes."""
        return b"\0".join((self.kind.encode(), self.subject.encode(), self.arguments))


class Agreed(NamedTuple):
    """Result of the agreement about a call."""

    call: Call
    active: list[bool]
    """Whether each rank is not idle."""
    flags: int
    """Union of the flags of all ranks."""
    flags_of_ranks: list[int]
    """Flags of each rank."""
    sizes: Tensor
    """Int64 ``[ranks, k]``: sizes that each rank sent to this one; zeros from idle ranks."""

    @property
    def num_active(self) -> int:
        """Number of ranks that are not idle."""
        return sum(self.active)


class LockStep:
    """Calls of a line that all ranks make together, or follow without data. Thread-safe.

    Every call of its line must be made by a `LockStep`: a header cannot be distinguished from other bytes.
    """

    def __init__(self, line: SerialExecutor) -> None:
        self.line = line

    def call(
        self, call: Call, *, work: Callable[[Agreed], T], sizes: Tensor | None = None, flags: int = 0
    ) -> LineCall[T]:
        """Begins a call; `work` runs in the line when all ranks have agreed on it.

        Args:
            call: The same on all ranks that are not idle.
            work: The function to run; it may use ``line.wire``, as all other ranks do in the same order.
            sizes: Int64 ``[ranks, k]``: numbers to send to each rank; the same k everywhere.
            flags: Bits that all ranks receive, up to 2^61.

        Raises:
            InvalidArgumentError: By `result`, on all ranks: they are about to make different calls.
        """
        self._check(sizes, flags)
        return self.line.submit(lambda: work(self._agree(call, sizes, flags)), call)

    def run(self, call: Call, *, work: Callable[[Agreed], T], sizes: Tensor | None = None, flags: int = 0) -> T:
        """Makes a call and waits for it; see `call`. Faster than `call` and `result`."""
        self._check(sizes, flags)
        return self.line.run(lambda: work(self._agree(call, sizes, flags)), call)

    def follow(
        self, handlers: Mapping[str, Callable[[Agreed, bytes], object]], *, flags: int = 0
    ) -> LineCall[str | None]:
        """Takes part in the next call of the other ranks, without data.

        Args:
            handlers: Kind of a call -> handler of an idle rank, with the arguments of the other ranks.
            flags: See `call`.

        Returns:
            Kind of the call made; None iff all ranks are idle.
        """
        self._check(None, flags)

        def take_part() -> str | None:
            agreed = self._agree(None, None, flags)
            if not any(agreed.active):
                return None
            kind = agreed.call.kind
            if kind not in handlers:
                raise FailedPreconditionError(
                    f"collective: the other ranks make {str(agreed.call)!r}, which this rank, being idle, cannot "
                    f"follow; it follows {', '.join(sorted(handlers)) or 'nothing'}"
                )
            handlers[kind](agreed, agreed.call.arguments)
            return kind

        return self.line.submit(take_part, "a call of the other ranks")

    def _check(self, sizes: Tensor | None, flags: int) -> None:
        """Rejects a wrong call before it is queued, where it would end the line."""
        number_of(sizes, self.line.wire.size)
        if not 0 <= flags < 1 << _FLAG_BITS:
            raise InvalidArgumentError(f"collective: flags must be in [0, 2^{_FLAG_BITS}), got {flags}")

    def _agree(self, call: Call | None, sizes: Tensor | None, flags: int) -> Agreed:
        headers = self.line.headers
        if call is None:
            heads = headers.exchange((0, flags, 0, 0), None)
        else:
            digest, num_bytes = _identity(call)
            num_sizes = 0 if sizes is None else sizes.shape[1]
            heads = headers.exchange((digest, flags, num_sizes, num_bytes), sizes)
            if heads.count([digest, flags, num_sizes, num_bytes]) == len(heads):  # the usual case, checked first
                return Agreed(call, [True] * len(heads), flags, [flags] * len(heads), headers.sizes(num_sizes, sizes))
        digests, flags_of_ranks, numbers, lengths = zip(*heads, strict=True)
        active = [digest != 0 for digest in digests]
        all_flags = functools.reduce(operator.or_, flags_of_ranks)
        if not any(active):
            return Agreed(Call(""), active, all_flags, list(flags_of_ranks), headers.sizes(0, None))
        first = active.index(True)
        for rank in range(first + 1, len(heads)):
            if (digests[rank] != digests[first] or numbers[rank] != numbers[first]) and active[rank]:
                raise RaisedByAllError(self._disagreement(call, numbers, first, rank))
        here = headers.sizes(numbers[first], sizes)
        if call is None or not all(active):
            call = self._broadcast_call(call, first, lengths[first])
        return Agreed(call, active, all_flags, list(flags_of_ranks), here)

    def _broadcast_call(self, call: Call | None, root: int, num_bytes: int) -> Call:
        """Returns the call, which the first active rank broadcasts to the idle ones."""
        text = torch.empty(num_bytes, dtype=torch.uint8)
        if call is not None:
            text.copy_(_as_tensor(call.encoded()))
        self.line.wire.broadcast(text, root)
        kind, subject, arguments = bytes(text.numpy()).split(b"\0", 2)
        return Call(kind.decode(), subject.decode(), arguments)

    def _disagreement(
        self, call: Call | None, num_sizes: tuple[int, ...], one: int, other: int
    ) -> InvalidArgumentError:
        """Returns the same error on all ranks; they exchange descriptions of their calls for it."""
        text = str(call or "").encode()[:_CALL_BYTES].ljust(_CALL_BYTES, b"\0")
        parts = self.line.wire.gather(_as_tensor(text))
        calls = [bytes(parts[rank].numpy()).rstrip(b"\0").decode(errors="replace") for rank in (one, other)]
        if calls[0] == calls[1]:
            numbers = (num_sizes[one], num_sizes[other])
            calls = [f"{description} with {number} sizes" for description, number in zip(calls, numbers, strict=True)]
        return InvalidArgumentError(
            f"collective: all ranks must make the same call, but rank {one} makes {calls[0]!r} and rank {other} makes "
            f"{calls[1]!r}"
        )


@functools.lru_cache(maxsize=256)
def _identity(call: Call) -> tuple[int, int]:
    """Returns the digest of a call, and its length. Cached, since most calls repeat."""
    encoded = call.encoded()
    return _digest(encoded), len(encoded)


def _digest(data: bytes) -> int:
    """Returns 63 bits, never 0."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 1 or 1


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
