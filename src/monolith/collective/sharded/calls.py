"""Calls of a store that all ranks make together, or follow: one method per kind, run in the line of every rank.

`settled` gives the answers of all ranks, or one error, to all of them; `pack` encodes arguments and answers; and
`BlockStreams` sends the row blocks of all ranks, one rank after the other, in portions that every rank receives.
"""

from __future__ import annotations

import builtins
import json
import struct
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from monolith import errors
from monolith.collective.lock_step import Call, LockStep
from monolith.collective.serial_executor import RaisedByAllError
from monolith.tables import BatchStamp
from monolith.tables.formats import RowBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from monolith.collective.lock_step import Agreed
    from monolith.collective.serial_executor import SerialExecutor
    from monolith.collective.wire import Wire

T = TypeVar("T")


class RankCalls:
    """The calls of one line by their kinds. Thread-safe.

    A method gets the arguments, which are the same on all ranks, and the data of this rank (None at a rank that
    follows). It makes the same exchanges on all ranks, and raises its errors on all of them (`RaisedByAllError`).
    """

    def __init__(self, line: SerialExecutor, name: str) -> None:
        self.lock_step = LockStep(line)
        self._name = name
        self._methods: dict[str, Callable[[bytes, Any], Any]] = {}

    @property
    def wire(self) -> Wire:
        """Wire of the line, for the methods."""
        return self.lock_step.line.wire

    def define(self, kind: str, method: Callable[[bytes, Any], Any]) -> None:
        """Registers the method of a kind of call."""
        self._methods[kind] = method

    def run(self, kind: str, arguments: bytes = b"", own: Any = None) -> Any:
        """Makes a call, and returns its result."""
        method = self._methods[kind]
        return self.lock_step.run(
            Call(f"{kind} {self._name}", arguments=arguments), work=lambda _: method(arguments, own)
        )

    def followers(self) -> dict[str, Callable[[Agreed, bytes], object]]:
        """Returns the handlers of an idle rank for the calls of the other ranks, for `LockStep.follow`."""
        return {f"{kind} {self._name}": partial(_follow, method) for kind, method in self._methods.items()}


def _follow(method: Callable[[bytes, Any], Any], _: Agreed, arguments: bytes) -> object:
    return method(arguments, None)


_GOOD, _BAD = b"+", b"-"


def settled(wire: Wire, do: Callable[[], bytes]) -> list[bytes]:
    """Returns the result of `do` on each rank; runs in the line, on all ranks.

    Raises:
        RaisedByAllError: `do` failed on some rank.
    """
    failure: Exception | None = None
    try:
        own = _GOOD + do()
    except Exception as error:  # noqa: BLE001 - whatever it is, all ranks receive it
        failure = error
        own = _BAD + _encoded(error)
    answers = gather_texts(wire, own)
    _raise_first([answer[1:] if answer.startswith(_BAD) else None for answer in answers], failure)
    return [answer[1:] for answer in answers]


def settled_here(wire: Wire, do: Callable[[], T]) -> T:
    """Returns the result of `do` on this rank only; otherwise like `settled`."""
    results: list[T] = []

    def run() -> bytes:
        results.append(do())
        return b""

    settled(wire, run)
    return results[0]


def _raise_first(failures: list[bytes | None], own: Exception | None) -> None:
    """Raises the error of the lowest rank that has one; if all ranks have the same, each raises its own.

    Raises:
        RaisedByAllError: a rank has an error.
    """
    failed = [(rank, text) for rank, text in enumerate(failures) if text is not None]
    if not failed:
        return
    if own is not None and len({text for _, text in failed}) == 1 and len(failed) == len(failures):
        raise RaisedByAllError(own)
    rank, text = failed[0]
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
    lengths = [int(size) for size in wire.gather(torch.tensor([len(text)]))]
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


_LENGTH = struct.Struct("<Q")


def pack(head: Any, blobs: Sequence[bytes] = ()) -> bytes:
    """Encodes a head and raw bytes as one byte string."""
    text = json.dumps([head, [len(blob) for blob in blobs]]).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *blobs])


def unpack(data: bytes) -> tuple[Any, list[bytes]]:
    """Returns the arguments of `pack`."""
    begin = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    head, sizes = json.loads(data[_LENGTH.size : begin])
    blobs = []
    for size in sizes:
        blobs.append(data[begin : begin + size])
        begin += size
    return head, blobs


def stamps_to_plain(stamps: Iterable[BatchStamp]) -> list[list[Any]]:
    """Converts stamps to plain values."""
    return [[stamp.worker, stamp.seq, stamp.position.hex(), stamp.event_time_ms] for stamp in stamps]


def stamps_from_plain(plain: Sequence[Sequence[Any]]) -> dict[int, BatchStamp]:
    """Converts plain values to stamps, by worker."""
    return {
        worker: BatchStamp(worker=worker, seq=seq, position=bytes.fromhex(position), event_time_ms=time)
        for worker, seq, position, time in plain
    }


_PORTION_BYTES = 8 << 20


class BlockStreams:
    """Streams of blocks between the ranks."""

    def __init__(self, calls: RankCalls) -> None:
        self._calls = calls
        self._numbers = count()
        self._open: dict[int, Iterator[RowBlock]] = {}
        calls.define("next blocks of", self._next)

    def open(self, begin: Callable[[], Iterator[RowBlock]]) -> int:
        """Opens the blocks of each rank, under one number. Runs in a call of all ranks."""
        number = next(self._numbers)
        self._open[number] = settled_here(self._calls.wire, begin)
        return number

    def blocks(self, number: int) -> Iterator[RowBlock]:
        """Yields all blocks; every portion is a call of all ranks."""
        for rank in range(self._calls.wire.size):
            has_more = True
            while has_more:
                has_more, portion = self._calls.run("next blocks of", pack([number, rank]))
                yield from map(RowBlock, portion)
        self._open.pop(number, None)

    def _next(self, arguments: bytes, _: object) -> tuple[bool, list[bytes]]:
        (number, rank), _blobs = unpack(arguments)
        wire = self._calls.wire
        answers = settled(wire, lambda: self._portion(number) if wire.rank == rank else b"")
        has_more, portion = unpack(answers[rank])
        if not has_more and rank == wire.size - 1:
            self._open.pop(number, None)
        return has_more, portion

    def _portion(self, number: int) -> bytes:
        blocks, size = [], 0
        for block in self._open[number]:
            blocks.append(block.data)
            size += len(block.data)
            if size >= _PORTION_BYTES:
                return pack(True, blocks)
        return pack(False, blocks)
