"""The results of a part of a call on every rank: all ranks get all answers, or all raise the same error."""

from __future__ import annotations

import builtins
import json
from typing import TYPE_CHECKING

import torch

from monolith import errors
from monolith.collective.serial_executor import RaisedByAllError

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.collective.wire import Wire

__all__ = ["gather_texts", "raise_failures", "settled"]

_GOOD, _BAD = b"+", b"-"


def settled(wire: Wire, do: Callable[[], bytes]) -> list[bytes]:
    """Returns the result of `do` on each rank; runs in the line, on all ranks.

    Raises:
        RaisedByAllError: `do` failed on some rank.
    """
    failure: Exception | None = None
    try:
        told = _GOOD + do()
    except Exception as error:  # noqa: BLE001 - whatever it is, all ranks receive it
        failure = error
        told = _BAD + _encoded(error)
    answers = gather_texts(wire, told)
    _raise_first([answer[1:] if answer.startswith(_BAD) else None for answer in answers], failure)
    return [answer[1:] for answer in answers]


def _raise_first(failures: list[bytes | None], own: Exception | None) -> None:
    """Raises the error of the lowest rank that has one; if all ranks have the same, each raises its own.

    Raises:
        RaisedByAllError: a rank has an error.
    """
    found = [(rank, text) for rank, text in enumerate(failures) if text is not None]
    if not found:
        return
    if own is not None and len({text for _, text in found}) == 1 and len(found) == len(failures):
        raise RaisedByAllError(own)
    rank, text = found[0]
    raise RaisedByAllError(_decoded(text, f"rank {rank}: ")) from own


def raise_failures(wire: Wire, own: Exception | None) -> None:
    """Raises the first error on all ranks, in a call in which all ranks have agreed that there is one.

    Raises:
        RaisedByAllError: always.
    """
    texts = gather_texts(wire, b"" if own is None else _encoded(own))
    _raise_first([text or None for text in texts], own)


def gather_texts(wire: Wire, text: bytes) -> list[bytes]:
    """Returns the bytes of all ranks, which may differ in length."""
    if wire.size == 1:
        return [text]
    lengths = [int(each) for each in wire.gather(torch.tensor([len(text)]))]
    texts = []
    for rank, length in enumerate(lengths):
        if rank == wire.rank or not length:
            part = torch.frombuffer(bytearray(text or b"\0"), dtype=torch.uint8)[:length]
        else:
            part = torch.empty(length, dtype=torch.uint8)
        wire.broadcast(part, rank)
        texts.append(text if rank == wire.rank else part.numpy().tobytes())
    return texts


def _encoded(error: Exception) -> bytes:
    return json.dumps([type(error).__name__, str(error)]).encode()


def _decoded(text: bytes, prefix: str) -> Exception:
    name, message = json.loads(text)
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(kind, UnicodeError):
        return errors.InternalError(f"{prefix}{name}: {message}")
    return kind(prefix + message)
