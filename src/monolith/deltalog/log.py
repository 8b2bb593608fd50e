"""`DeltaLog`: the changes of a training run, for processes that keep copies of its tables up to date."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import fsspec

from monolith.clock import SystemClock
from monolith.closing import Closing
from monolith.deltalog.increment import store_of
from monolith.deltalog.part import PartReader, PartWriter
from monolith.deltalog.replay import GapError
from monolith.deltalog.transport import Transport
from monolith.deltalog.transports.file_transport import FileTransport
from monolith.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.extensions import Registry
from monolith.files import is_name, join, named_errors, open_storage, remove_folder
from monolith.tables.snapshot import save

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from monolith.clock import Clock
    from monolith.deltalog.increment import Increment
    from monolith.deltalog.transport import Extent
    from monolith.tables import Schema, Store

BaseKind = Literal["snapshots", "checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A saved state of all tables and its position in the log."""

    name: str
    kind: BaseKind
    """``snapshots``: a folder with a snapshot of serving rows for each store. ``checkpoint``: the prefix of one."""
    path: str
    numbers: dict[str, int]
    """Part -> number of the last increment that the base contains."""
    stores: dict[str, str] = field(default_factory=dict)
    """Store -> its folder below `path`; for a checkpoint only the names count, since its manifest lists the folders."""
    created_ms: int = 0
    step: int = 0
    dense: str | None = None
    """File of the dense weights below `path`; None: they are only in the log, or not published."""
    after: dict[str, int] = field(default_factory=dict)
    """Part of a previous owner of these rows -> number of its last increment. A reader applies those parts first, so
    that they do not overwrite this base.
    """

    def __post_init__(self) -> None:
        if not is_name(self.name) or self.name.startswith("."):
            raise InvalidArgumentError(f"delta log: the name of a base must be that of a file, got {self.name!r}")

    def holds(self, part: str) -> bool:
        """Returns whether a reader can start a part here: the base has its position and its rows or weights."""
        if part not in self.numbers:
            return False
        rows = store_of(part)
        if rows is not None:
            return rows[0] in self.stores
        return self.dense is not None or self.kind == "checkpoint"

    def at(self, numbers: Mapping[str, int]) -> Base:
        """Returns this base at another position."""
        return replace(self, numbers={**self.numbers, **numbers})

    def to_bytes(self) -> bytes:
        """Encodes the document of this base."""
        return json.dumps({**asdict(self), "format": "monolith-base", "version": 1}, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, text: bytes, *, origin: str) -> Base:
        """Decodes what `to_bytes` wrote.

        Raises:
            DataLossError: the text is not the document of a base.
        """
        try:
            document: dict[str, Any] = json.loads(text)
            if document.pop("format") != "monolith-base" or document.pop("version") != 1:
                raise ValueError("not a base of version 1")  # noqa: TRY301 - one handler reports every fault
            base = cls(**document)
            if not all(type(number) is int for number in (*base.numbers.values(), *base.after.values())):
                raise TypeError(f"numbers are {base.numbers}, {base.after}")  # noqa: TRY301 - the same
            if not all(is_name(folder) for folder in base.stores.values()) or type(document["path"]) is not str:
                raise TypeError(f"folders are {document['path']!r}, {base.stores}")  # noqa: TRY301 - the same
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise DataLossError(f"{origin}: not the description of a base: {error}") from error
        return base


_DENSE_FILE = "dense.safetensors"
_LOOKS, _LOOK_SECONDS = 400, 0.05
"""Number and interval of the polls while another writer claims a part. One that died before it finished looks like one
that is slow.
"""
_NOBODY_STOPS = threading.Event()
_OBJECTS = "monolith.deltalog.transports.object_transport:ObjectTransport"
_KAFKA = "monolith.deltalog.transports.kafka_transport:KafkaTransport"


def transport_of(place: str | os.PathLike[str]) -> type[Transport]:
    """Returns the class that stores the log of a place: a folder, or a URL with the scheme of a transport.

    Raises:
        InvalidArgumentError: no package has a transport of this scheme.
        FailedPreconditionError: the package that has it is broken.
    """
    text = str(place)
    if "://" not in text and not text.startswith("kafka:"):  # a topic without slashes is no folder
        return FileTransport
    builtin = dict.fromkeys([*fsspec.available_protocols(), *fsspec.registry], _OBJECTS) | {"kafka": _KAFKA}
    transports = Registry("monolith.transports", builtin, Transport, setting="delta log: the scheme of its URL")
    found: type[Transport] = transports.get(text.partition(":")[0])
    return found


class DeltaLog(Closing):
    """A log of increments. Thread-safe; each writer and each reader belongs to one thread.

    Args:
        place: A local folder, ``kafka://host:port/topic``, or any URL that fsspec or another package supports.
        clock: Clock of this machine; None: the system clock.
        base_folder: Path or URL where `save_base` writes; None: into the log. Kafka holds none.
        options: Keyword arguments of the transport: `segment_bytes` of a folder; `poll_seconds` of objects; `client`,
            `message_bytes` and `patience_seconds` of Kafka.

    >>> import tempfile
    >>> from monolith.deltalog import DeltaLog, IncrementKind
    >>> with tempfile.TemporaryDirectory() as folder, DeltaLog(f"{folder}/log") as log:
    ...     with log.open_writer("dense") as writer:
    ...         _ = writer.append(kind=IncrementKind.DENSE, payload=b"weights")
    ...     with log.open_reader("dense") as reader:
    ...         [(each.number, each.kind.name) for each in reader]
    [(0, 'OPENING'), (1, 'DENSE')]
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        base_folder: str | None = None,
        **options: Any,
    ) -> None:
        self.transport = transport_of(place)(str(place), **options)
        self.place = self.transport.place
        """Path or URL of the log."""
        own_folder = join(self.place, "bases") if self.transport.holds_bases else None
        self.base_folder = own_folder if base_folder is None else base_folder
        """Where `save_base` writes; None: nowhere."""
        self._clock = clock or SystemClock()

    # Parts

    def parts(self) -> list[str]:
        """Returns the names of the parts that have records.

        Raises:
            NotFoundError: the log does not exist.
        """
        return self.transport.parts()

    def extent(self, part: str) -> Extent | None:
        """Returns what a part has now; None: nothing."""
        return self.transport.extent(part)

    def position(self) -> dict[str, int]:
        """Returns part -> number of its last increment; serializable as JSON."""
        extents = {part: self.extent(part) for part in self._known_parts()}
        return {part: extent.next - 1 for part, extent in extents.items() if extent is not None}

    def open_writer(
        self,
        part: str,
        *,
        schema: Schema | None = None,
        needs: dict[str, int] | None = None,
        base: str | None = None,
    ) -> PartWriter:
        """Claims a part, replacing its writer; see `PartWriter`."""
        return PartWriter(self.transport, part, schema=schema, needs=needs, base=base, clock=self._clock)

    def open_reader(self, part: str, *, number: int | None = None, schema: Schema | None = None) -> PartReader:
        """Reads a part from a number on; see `PartReader`."""
        return PartReader(self.transport, part, number=number, schema=schema, clock=self._clock)

    def behind(self, part: str, number: int) -> Iterator[Increment]:
        """Iterates over the increments of a part after a number, up to its current end.

        While a new writer claims the part, the last increment is not settled; the call waits up to 20 s for it.

        Raises:
            GapError: some increments were removed by `trim` or by the retention of the topic, or the last ones did not
                settle in time.
        """
        extent = self.extent(part)
        if extent is None or extent.next <= number:
            raise GapError(
                f"delta log '{self.place}', part {part!r}: increment {number} does not exist, the part ends before"
                f" increment {0 if extent is None else extent.next}"
            )
        with self.open_reader(part, number=number + 1) as reader:
            yield from reader
            for _ in range(_LOOKS):
                if reader.next_number is None or reader.next_number >= extent.next:
                    return
                reader.wait(_LOOK_SECONDS, _NOBODY_STOPS)
                yield from reader
            if reader.next_number is not None and reader.next_number < extent.next:
                raise GapError(
                    f"delta log '{self.place}', part {part!r}: increments {reader.next_number} to {extent.next - 1} did"
                    f" not settle within {_LOOKS * _LOOK_SECONDS:g} s: a writer claimed the part and died,"
                    " or is slow; publish from a base"
                )

    # Bases

    def bases(self) -> list[Base]:
        """Returns all bases, the oldest first."""
        bases = [
            Base.from_bytes(text, origin=f"'{self.place}', document {name!r}")
            for name, text in self.transport.documents().items()
        ]
        return sorted(bases, key=lambda base: (base.created_ms, base.name))

    def base(self, name: str) -> Base:
        """Returns a base by name.

        Raises:
            NotFoundError: no base has this name.
        """
        by_name = {base.name: base for base in self.bases()}
        if name not in by_name:
            raise NotFoundError(f"delta log '{self.place}': there is no base {name!r}, it has {sorted(by_name)}")
        return by_name[name]

    def add_base(self, base: Base) -> None:
        """Adds a state from which readers may start."""
        self.transport.put_document(f"{base.name}.json", base.to_bytes())

    def save_base(
        self,
        stores: Mapping[str, Store],
        *,
        name: str,
        numbers: Mapping[str, int],
        after: Mapping[str, int] | None = None,
        step: int = 0,
        dense: bytes | None = None,
    ) -> Base:
        """Saves the serving rows of stores as a new base. Training and following continue meanwhile.

        Args:
            stores: The tables by name.
            name: Name of the base.
            numbers: Part -> number of the last increment that the stores contain; they may contain more.
            after: Part of a previous owner of these rows -> its last number; readers apply those parts before this
                base.
            step: Number of steps trained.
            dense: The dense weights as a safetensors file; None: readers get them only from the log.

        Raises:
            FailedPreconditionError: the transport holds no bases, and there is no `base_folder`.
        """
        if self.base_folder is None:
            raise FailedPreconditionError(
                f"delta log '{self.place}': a base needs a folder; write DeltaLog(..., base_folder=...)"
            )
        path = join(self.base_folder, name)
        for store_name, store in stores.items():
            save(store, join(path, store_name), state=False)
        if dense is not None:
            storage = open_storage(path)
            storage.make()
            storage.replace(_DENSE_FILE, dense)
        base = Base(
            name=name,
            kind="snapshots",
            path=path,
            numbers=dict(numbers),
            after=dict(after or {}),
            stores={store_name: store_name for store_name in stores},
            created_ms=int(1000 * self._clock.now()),
            step=step,
            dense=None if dense is None else _DENSE_FILE,
        )
        self.add_base(base)
        return base

    def remove_base(self, name: str) -> None:
        """Removes a base from the log, and its files if `save_base` wrote them. Checkpoint files stay."""
        base = {base.name: base for base in self.bases()}.get(name)
        self.transport.remove_document(f"{name}.json")
        if self.base_folder is None or base is None or base.kind != "snapshots":
            return
        if base.path == join(self.base_folder, name):
            with named_errors(base.path, "removed"):
                remove_folder(base.path)

    def trim(self, *, keep_bases: int = 1) -> Mapping[str, int]:
        """Removes all but the newest bases, and the increments that a reader starting at one of those does not need.

        Without a base nothing is removed: a new reader needs every increment.

        Args:
            keep_bases: Number of bases to keep for each part, at least 1.

        Returns:
            Part -> number of its first remaining increment.
        """
        if keep_bases < 1:
            raise InvalidArgumentError(f"delta log: keep_bases must be >= 1, got {keep_bases}")
        bases = self.bases()
        kept = kept_by(bases, self._known_parts(), keep=keep_bases)
        # Records before bases: a reader that starts at an older base meanwhile finds a gap instead of a missing base.
        firsts = {part: self.transport.trim(part, needed) for part, needed in kept.needed.items()}
        for base in bases:
            if base not in kept.bases:
                self.remove_base(base.name)
        return firsts

    def close(self) -> None:
        """Closes connections."""
        self.transport.close()

    def _known_parts(self) -> list[str]:
        try:
            return self.parts()
        except NotFoundError:
            return []


class Kept(NamedTuple):
    """The bases that `trim` keeps, and the increments that they need."""

    bases: list[Base]
    needed: dict[str, int]
    """Part -> number of the first increment that a reader starting at one of these bases needs."""


def kept_by(bases: Sequence[Base], parts: Iterable[str], *, keep: int) -> Kept:
    """Keeps the newest bases of every part: a base that holds a single part does not displace those of others.

    A part without a base is kept entirely.

    Args:
        bases: All bases of the log.
        parts: All parts of the log.
        keep: Number of bases to keep for each part.
    """
    by_number = {  # not by time: clocks jump
        part: sorted((base for base in bases if base.holds(part)), key=lambda base: base.numbers[part])
        for part in parts
    }
    newest = {part: holding[-keep:] for part, holding in by_number.items()}
    kept = {base.name for holding in newest.values() for base in holding}
    needed = {part: min((base.numbers[part] + 1 for base in holding), default=0) for part, holding in newest.items()}
    return Kept([base for base in bases if base.name in kept], needed)
