"""A store of another process, behind a plain pipe: it shows that nothing but the protocol is needed to make one.

A frame is a header in JSON and the raw bytes whose sizes it says. The other process keeps the objects (stores, workers,
plans, cuts, readers); this one has a stub with the number of each. Calls of several threads take turns.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
import torch

from monolith import _core, errors
from monolith.tables import (
    Cut,
    Finished,
    LocalStore,
    PackedBlocks,
    SnapshotWriteConfig,
    TableConfig,
    Traits,
    batch,
    history,
    store,
)
from monolith.tables.formats.row_block import RowBlock
from monolith.tables.schema import Schema
from monolith.tables.snapshot import FileEntry, RestoreReport, SnapshotManifest

LENGTH, POLL_SECONDS = struct.Struct("<Q"), 0.02


class PipeRows(NamedTuple):
    values: torch.Tensor
    seen: int


def _value(kind: Any) -> tuple[Any, Any]:
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else kind._fields
    return lambda value: {name: getattr(value, name) for name in names}, lambda found: kind(**found)


PLAIN: dict[str, tuple[Any, Any]] = {
    "dict": (lambda value: [[key, item] for key, item in value.items()], dict),
    "range": (lambda value: [value.start, value.stop], lambda bounds: range(*bounds)),
    "tuple": (list, tuple),
    "Tensor": (
        lambda value: [value.numpy().dtype.str, list(value.shape), value.contiguous().numpy().tobytes()],
        lambda parts: torch.from_numpy(np.frombuffer(bytearray(parts[2]), parts[0]).reshape(parts[1])),
    ),
    "RowBlock": (lambda block: block.data, RowBlock),
    "PackedBlocks": (lambda packed: bytes(packed.data), PackedBlocks),
    "SnapshotManifest": (SnapshotManifest.to_bytes, lambda data: SnapshotManifest.from_bytes(data, origin="pipe")),
    "Schema": (lambda schema: schema.text, Schema.parse),
    **{kind.__name__: _value(kind) for kind in (FileEntry, PipeRows, RestoreReport)},
    **{
        name: _value(kind)
        for name, kind in {**vars(store), **vars(batch), **vars(history)}.items()
        if is_dataclass(kind) or hasattr(kind, "_fields")
    },
}
"""Kinds of values: what plainer ones they are made of, and how they are made of them."""
OBJECTS: dict[str, tuple[str, ...]] = {
    "make_store": ("schema", "traits", "owned"),
    "join": ("worker", "applied", "applied_by_server", "next_seq"),
    "plan": ("stamp", "unique_ids", "splits", "inverse", "counts", "tables", "num_values"),
    "cut": ("mark", "applied", "rows"),
    "open_reader": ("name",),
    "prepare_restore": (),
    "begin_write": (),
}
"""Calls whose result stays on the other side, and what never changes of it, which crosses with its number."""


class Frame:
    """The raw bytes beside a header, and how values become part of the two."""

    def __init__(self, blobs: Sequence[bytes] = (), host: PipeHost | None = None) -> None:
        self.blobs = list(blobs)
        self._host = host

    def pack(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, bytes):
            self.blobs.append(value)
            return {"blob": len(self.blobs) - 1}
        if isinstance(value, Stub) and value.host is self._host:
            return {"stub": value.number}
        kind = "dict" if isinstance(value, Mapping) else type(value).__name__
        if kind in PLAIN:
            return {"kind": kind, "of": self.pack(PLAIN[kind][0](value))}
        if not isinstance(value, Iterable):
            raise errors.InvalidArgumentError(f"a plan must come from this store's plan(), got {kind} of another")
        return [self.pack(item) for item in value]

    def unpack(self, value: Any, objects: Mapping[int, Any]) -> Any:
        match value:
            case list():
                return [self.unpack(item, objects) for item in value]
            case {"blob": number}:
                return self.blobs[number]
            case {"stub": number}:
                return objects[number]
            case {"kind": kind, "of": plain}:
                return PLAIN[kind][1](self.unpack(plain, objects))
        return value

    def send(self, end: socket.socket, header: dict[str, Any]) -> None:
        text = json.dumps({**header, "sizes": [len(blob) for blob in self.blobs]}).encode()
        end.sendall(b"".join([LENGTH.pack(len(text)), text, *self.blobs]))


def receive(source: BinaryIO) -> tuple[Frame, dict[str, Any]]:
    header = json.loads(source.read(*LENGTH.unpack(source.read(LENGTH.size))))  # struct.error: nothing comes any more
    return Frame([source.read(each) for each in header["sizes"]]), header


# This end


class PipeHost:
    """Another process that keeps stores for this one."""

    def __init__(self) -> None:
        self._end, other = socket.socketpair()
        with other:
            command = [sys.executable, str(Path(__file__).resolve()), str(other.fileno())]
            self.process = subprocess.Popen(command, pass_fds=[other.fileno()])
        self._answers = self._end.makefile("rb")
        self._lock = threading.Lock()
        self.dropped: list[int] = []  # objects that nobody here knows any more

    def close(self) -> None:
        self._answers.close()
        self._end.close()
        self.process.wait()

    def call(self, number: int, name: str, *arguments: Any, **options: Any) -> Any:
        frame = Frame(host=self)
        given = {"arguments": frame.pack(list(arguments)), "options": frame.pack(options)}
        with self._lock:
            dropped = [self.dropped.pop() for _ in list(self.dropped)]
            try:
                frame.send(self._end, {"to": number, "call": name, **given, "dropped": dropped})
                frame, reply = receive(self._answers)
            except (OSError, ValueError, struct.error) as error:
                raise errors.UnavailableError("store behind a pipe: its process has ended") from error
        if "error" in reply:
            raise getattr(errors, reply["error"])(reply["message"])
        result = frame.unpack(reply["result"], {})
        if "number" in reply:
            return STUBS[name](self, reply["number"], result)
        if name in {"read", "apply"}:
            return Finished(result)
        return iter(result) if name in {"blocks", "changes"} else result


class Stub:
    """An object of the other process."""

    def __init__(self, host: PipeHost, number: int, facts: Mapping[str, Any]) -> None:
        self.host, self.number, self.core = host, number, None
        self.__dict__.update(facts)
        weakref.finalize(self, host.dropped.append, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.host.call(self.number, "__exit__", None, None, None)


def forward(name: str) -> Any:
    """A method of the other side."""

    def call(self: Stub, *arguments: Any, **options: Any) -> Any:
        return self.host.call(self.number, name, *arguments, **options)

    return call


class PipeJoined(Stub):
    plan, read, apply, discard = map(forward, ("plan", "read", "apply", "discard"))
    flush, cut, evict = map(forward, ("flush", "cut", "evict"))


class PipeReader(Stub):
    mark = property(forward("mark"))
    next_mark, changes, packed_changes = map(forward, ("next_mark", "changes", "packed_changes"))
    advance, close = map(forward, ("advance", "close"))


class PipeRestore(Stub):
    load = forward("load")


class PipeCut(Stub):
    blocks, release = map(forward, ("blocks", "release"))

    def write(self, folder: str, rules: SnapshotWriteConfig, *, transfer: _core.Transfer | None = None) -> Any:
        """In a thread of the other process: calls go on beside it, and it can be cancelled."""
        transfer = _core.Transfer() if transfer is None else transfer
        writing = self.host.call(0, "begin_write", self, folder, rules, cancelled=transfer.cancelled)
        while not self.host.call(writing.number, "done"):
            time.sleep(POLL_SECONDS)
            if transfer.cancelled:
                self.host.call(writing.number, "cancel")
        return self.host.call(writing.number, "result")


class PipeStore(Stub):
    """A `monolith.tables.store.Store` whose rows are in a `LocalStore` of another process: of its own, or of a host."""

    schema: Schema
    traits: Traits
    owned: tuple[range, ...]
    join, plan, read, cut, open_reader = map(forward, ("join", "plan", "read", "cut", "open_reader"))
    touch, erase, load, prepare_restore = map(forward, ("touch", "erase", "load", "prepare_restore"))
    resume, assign, stats, rows_by_slot = map(forward, ("resume", "assign", "stats", "rows_by_slot"))

    def __init__(self, configs: Mapping[str, TableConfig], host: PipeHost | None = None) -> None:
        with ExitStack() as ended:
            used = ended.enter_context(closing(PipeHost())) if host is None else host
            number, facts = used.call(0, "make_store", {name: each.to_dict() for name, each in configs.items()})
            super().__init__(used, number, {**facts, "traits": replace(facts["traits"], remote=True)})
            self._ending = ended.pop_all()

    def close(self) -> None:
        with suppress(errors.UnavailableError):  # it was closed already
            self.host.call(self.number, "close")
        self._ending.close()


STUBS: dict[str, Any] = {"join": PipeJoined, "cut": PipeCut, "open_reader": PipeReader, "prepare_restore": PipeRestore}
STUBS |= {"make_store": lambda _, *made: made, "plan": Stub, "begin_write": Stub}


# The other end


class Writing:
    """A cut that is being written in a thread."""

    def __init__(self, cut: Cut, folder: str, rules: SnapshotWriteConfig, *, cancelled: bool) -> None:
        transfer, executor = _core.Transfer(), ThreadPoolExecutor(max_workers=1)
        if cancelled:
            transfer.cancel()
        future = executor.submit(cut.write, folder, rules, transfer=transfer)
        executor.shutdown(wait=False)
        self.done, self.result, self.cancel = future.done, future.result, transfer.cancel


class Objects:
    """What this process keeps for the other one; number 0 is this."""

    def __init__(self) -> None:
        self._by_number: dict[int, Any] = {0: self}
        self._made = 0

    def make_store(self, configs: Mapping[str, Any]) -> LocalStore:
        return LocalStore({name: TableConfig.from_dict(each) for name, each in configs.items()})

    begin_write = Writing

    def answer(self, asked: Frame, request: dict[str, Any], reply: Frame) -> dict[str, Any]:
        for number in request["dropped"]:
            del self._by_number[number]
        arguments, options = (asked.unpack(request[each], self._by_number) for each in ("arguments", "options"))
        name = request["call"]
        found = getattr(self._by_number[request["to"]], name)
        value = found(*arguments, **options) if callable(found) else found
        if name in OBJECTS:
            self._made += 1
            self._by_number[self._made] = value
            facts = {each: getattr(value, each) for each in OBJECTS[name]}
            return {"result": reply.pack(facts), "number": self._made}
        if name in {"read", "apply"}:
            value = value.result()
        return {"result": reply.pack(PipeRows(value.values, value.seen) if name == "read" else value)}


def serve(end: socket.socket) -> None:
    """Answers until the other process is gone."""
    objects = Objects()
    with end.makefile("rb") as requests, suppress(struct.error):
        while True:
            asked, request = receive(requests)
            reply = Frame()
            try:
                answer = objects.answer(asked, request, reply)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other process gets to know
                known = error if isinstance(error, errors.OpError) else errors.InternalError(repr(error))
                reply, answer = Frame(), {"error": type(known).__name__, "message": str(known)}
            reply.send(end, answer)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)  # what is still being written is of no use to anybody
