"""Messages between the ranks of a synchronous run: values of all, decisions of rank 0, and errors.

All ranks must make the same calls in the same order.
"""

from __future__ import annotations

import builtins
import json
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from monolith import errors
from monolith.collective import Call
from monolith.errors import OpError, UnknownError

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.collective import Agreed, LockStep, Wire

T = TypeVar("T")

_SHOWN = 400
"""Characters of a text that a message shows."""


class RankAgreement:
    """Messages over one serial connection. Any thread may use it, one at a time."""

    def __init__(self, lock_step: LockStep, subject: str) -> None:
        self._lock_step = lock_step
        self._subject = subject
        self.rank = lock_step.line.wire.rank
        self.size = lock_step.line.wire.size

    def gather(self, what: str, mine: Any) -> list[Any]:
        """Returns the values of all ranks, in rank order."""
        text = json.dumps(mine).encode()
        sizes = torch.full((self.size, 1), len(text), dtype=torch.int64)

        def work(agreed: Agreed) -> list[bytes]:
            return gather_texts(self._lock_step.line.wire, text, agreed.sizes[:, 0].tolist())

        call = Call("words", f"about {what} of {self._subject}")
        return [json.loads(text) for text in self._lock_step.run(call, sizes=sizes, work=work)]

    def broadcast(self, what: str, look: Callable[[], Any]) -> Any:
        """Returns on every rank what `look` returns on rank 0, or raises its error on every rank."""
        return self.run_on_all(what, look if self.rank == 0 else lambda: None)[0]

    def run_on_all(self, what: str, work: Callable[[], Any]) -> list[Any]:
        """Returns what `work` returns on each rank; if it raises on any rank, every rank raises that error."""
        own: Exception | None = None
        value: Any = None
        try:
            value = work()
        except Exception as error:  # noqa: BLE001 - all ranks raise it
            own = error
        said = None if own is None else [type(own).__name__, _text_of(own)]
        answers = self.gather(what, {"value": value, "error": said})
        failed = next((rank for rank, answer in enumerate(answers) if answer["error"] is not None), None)
        if failed is None:
            return [answer["value"] for answer in answers]
        if failed == self.rank and own is not None:
            raise own
        raise error_of(*answers[failed]["error"], rank=failed)

    def require_same(self, what: str, mine: str, *, advice: str) -> None:
        """Raises on all ranks if a value differs between them."""
        texts = [str(text) for text in self.gather(what, mine)]
        other = next((rank for rank, text in enumerate(texts) if text != texts[0]), None)
        if other is not None:
            raise errors.InvalidArgumentError(
                f"{self._subject}: all ranks must have the same {what}, but"
                f" {_difference(texts[0], texts[other], other)}; {advice}"
            )


def gather_texts(wire: Wire, mine: bytes, lengths: list[int]) -> list[bytes]:
    """Gathers the texts of all ranks, whose lengths are given, in one collective call."""
    longest = max(lengths)
    padded = torch.frombuffer(bytearray(mine.ljust(longest, b"\0") or b"\0"), dtype=torch.uint8)[:longest]
    parts = wire.gather(padded) if longest else [padded] * wire.size
    return [bytes(part.numpy())[:length] for part, length in zip(parts, lengths, strict=True)]


def error_of(kind: str, text: str, *, rank: int) -> Exception:
    """Returns an error that another rank has raised."""
    error_class = getattr(errors, kind, None)
    message = f"rank {rank}: {text}"
    if isinstance(error_class, type) and issubclass(error_class, OpError):
        return error_class(message)
    plain = getattr(builtins, kind, None)
    if isinstance(plain, type) and issubclass(plain, ValueError | TypeError):
        return plain(message)
    return UnknownError(f"rank {rank}: {kind}: {text}")


def _text_of(error: Exception) -> str:
    return error.message if isinstance(error, OpError) else str(error)


def _difference(first: str, second: str, rank: int) -> str:
    one, two = first.splitlines(), second.splitlines()
    place = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    shown = [(lines[place] if place < len(lines) else "nothing more")[:_SHOWN] for lines in (one, two)]
    return f"rank 0 has {shown[0]!r} where rank {rank} has {shown[1]!r}"
