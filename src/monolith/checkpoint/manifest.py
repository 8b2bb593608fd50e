"""The list of what a checkpoint consists of, as a sealed JSON file that is written last; see `monolith.files.seal`."""

from __future__ import annotations

import base64
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from monolith.errors import DataLossError
from monolith.files import is_name, seal, unseal
from monolith.tables import BatchStamp, stamps_from_json, stamps_json

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT_VERSION = 2
"""Version of the manifest and of the files it lists.

To change either: raise the number, describe the new form in docs/formats/checkpoint.md under its version, keep reading
the old one, and store a real checkpoint of the old version under tests/format/checkpoint_v<number>/ with a test that
restores it. Table snapshots carry a version of their own.
"""

FORMAT = "monolith-checkpoint"
SUFFIX = ".manifest"

_TRAINING = "train"
"""Name of the position of the training batches in version 1."""

Kind: TypeAlias = Literal["full", "dense_only"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFile:
    """A file of the checkpoint."""

    name: str
    """Relative to the model directory."""
    bytes: int
    crc32c: int
    """CRC-32C over the CRC-32Cs, 4 bytes each and little-endian, of the file's pieces of 4 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesEntry:
    """The snapshot of one store."""

    folder: str
    """Relative to the model directory; a snapshot as docs/formats/snapshot.md has it."""
    snapshot_id: int
    manifest_crc32c: int
    """CRC-32C of the snapshot's own manifest, which covers its files."""
    rows: dict[str, int]
    """Table -> rows."""
    bytes: int
    """Size of its bucket files together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A checkpoint."""

    step: int
    generation: int
    """Grows with every run that writes to the model directory; keeps a run that was replaced from committing."""
    created: float
    """Unix seconds of the cut."""
    kind: Kind
    """Whether the tables are in it."""
    tensors: CheckpointFile | None
    """The safetensors file of everything that is a tensor; None where nothing is."""
    meta: CheckpointFile | None
    """The JSON description of the model."""
    tables: dict[str, TablesEntry]
    """Store -> its snapshot."""
    applied: dict[int, BatchStamp]
    """Worker -> its last batch in the dense weights, with the position to resume at. Rows have their own clocks."""
    positions: dict[str, bytes]
    """Further inputs of the user's -> their positions."""
    state: dict[str, Any]
    """model, optimizers, schedules, extra and random: trees of plain values and references to tensors."""

    @property
    def num_bytes(self) -> int:
        """Size of all files but the manifest."""
        files = sum(file.bytes for file in (self.tensors, self.meta) if file is not None)
        return files + sum(tables.bytes for tables in self.tables.values())

    @property
    def all_positions(self) -> dict[str, str]:
        """Positions to resume reading, for display: of each worker, and of the user's further inputs."""
        workers = {f"worker {worker}": stamp.position for worker, stamp in self.applied.items() if stamp.position}
        return {name: value.decode(errors="replace") for name, value in {**workers, **self.positions}.items()}

    @property
    def names(self) -> set[str]:
        """Files and folders of the model directory that the checkpoint consists of, except the manifest."""
        files = {file.name for file in (self.tensors, self.meta) if file is not None}
        return files | {tables.folder.partition("/")[0] for tables in self.tables.values()}

    def to_bytes(self) -> bytes:
        """Returns the text of the manifest file."""
        return seal({**_plain(self), "format": FORMAT, "version": FORMAT_VERSION})

    @classmethod
    def from_bytes(cls, text: bytes, *, origin: str) -> Manifest:
        """Parses what `to_bytes` wrote.

        Raises:
            DataLossError: the text is anything else; names `origin` (the file) and the reason.
        """
        body = unseal(text, subject=origin, format_name=FORMAT, versions=range(1, FORMAT_VERSION + 1))
        try:
            return _built(body)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataLossError(f"{origin}: not the fields of a manifest: {error!r}") from error


def _plain(manifest: Manifest) -> dict[str, Any]:
    document: dict[str, Any] = {field.name: getattr(manifest, field.name) for field in fields(manifest)}
    for name in ("tensors", "meta"):
        document[name] = None if document[name] is None else asdict(document[name])
    document["tables"] = {name: asdict(tables) for name, tables in manifest.tables.items()}
    document["applied"] = stamps_json(manifest.applied)
    document["positions"] = {name: _position_text(position) for name, position in manifest.positions.items()}
    return document


def _position_text(position: bytes) -> Any:
    """Returns a position as JSON if it is a JSON text, which keeps it readable."""
    if position.isascii():
        return position.decode("ascii")
    return {"base64": base64.b64encode(position).decode()}


def _position(value: Any) -> bytes:
    return value.encode("ascii") if isinstance(value, str) else base64.b64decode(value["base64"], validate=True)


def _built(document: Mapping[str, Any]) -> Manifest:
    values = {key: value for key, value in document.items() if key not in {"format", "version"}}
    if document["version"] == 1:
        values |= _since_version_1(values)
    for key in ("step", "generation"):
        if type(values[key]) is not int:
            raise TypeError(f"{key} is {values[key]!r}")
    if values["kind"] not in {"full", "dense_only"}:
        raise ValueError(f"kind is {values['kind']!r}")
    for name in ("tensors", "meta"):
        values[name] = None if values[name] is None else _file(values[name])
    values["tables"] = {name: _tables(name, tables) for name, tables in values["tables"].items()}
    values["applied"] = stamps_from_json(values["applied"])
    values["positions"] = {name: _position(position) for name, position in values["positions"].items()}
    return Manifest(**values)


def _file(values: Mapping[str, Any]) -> CheckpointFile:
    entry = CheckpointFile(**values)
    _require_numbers(entry.bytes, entry.crc32c)
    if not is_name(entry.name):
        raise ValueError(f"{entry.name!r} does not name a file of the model directory")
    return entry


def _tables(store: str, values: Mapping[str, Any]) -> TablesEntry:
    entry = TablesEntry(**values)
    _require_numbers(entry.bytes, entry.manifest_crc32c, entry.snapshot_id, *entry.rows.values())
    folder, _, below = entry.folder.partition("/")
    if not is_name(store) or not is_name(folder) or below != store:
        raise ValueError(f"{entry.folder!r} is not the folder of a store {store!r} in the model directory")
    return entry


def _require_numbers(*values: int) -> None:
    for value in values:
        if type(value) is not int or not 0 <= value < 2**64:
            raise TypeError(f"{value!r} is not a size, count or checksum")


def _since_version_1(values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts version 1, which had the position of the training batches among the others, and numbered all updates."""
    tables = {name: dict(entry) for name, entry in values["tables"].items()}
    last = max([0, *(entry.pop("seq") for entry in tables.values())])
    applied: dict[int, BatchStamp] = {}
    if _TRAINING in values["positions"]:
        applied[0] = BatchStamp(worker=0, seq=last, position=_position(values["positions"][_TRAINING]))
    return {"tables": tables, "applied": stamps_json(applied)}
