"""The manifest of an export, ``docs/formats/export.md``: written last, so that all files it names exist."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from monolith.errors import DataLossError, UnimplementedError
from monolith.export.layout_spec import POOLINGS, DenseSpec, FeatureSpec
from monolith.export.signature import Signature
from monolith.files import is_name, parse_manifest, require_seal, seal
from monolith.ids import MAX_SLOT_NUMBER
from monolith.tables import ALL_BUCKETS, MAX_WIDE_SLOTS

MANIFEST = "manifest.json"
FORMAT = "monolith-export"
VERSION = 3
"""Version of the manifest and of the files it lists.

To change either: raise the number, describe the new form in docs/formats/export.md under its version, keep reading the
old one, and store a real export of the old version under tests/format/export_v<number>/ with a test that loads it.
"""
_UNSEALED = 2
"""The version before manifests had a checksum."""

ExportKind = Literal["standalone", "entry", "ps", "dense"]
"""``standalone``: everything. ``entry``: everything except rows, which ``ps`` have. ``dense``: weights only."""
_BESIDE = re.compile(r"rows|\.\./\.\./rows/\d+")
_LARGEST = 2**20
"""Exclusive upper bound of dims and sequence lengths."""
_ID_LAYOUTS = {"int64", "raw", "v2", "any"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsPlace:
    """Location of the rows."""

    kind: Literal["snapshot", "checkpoint"]
    """``snapshot``: a folder with one of serving rows for each store. ``checkpoint``: the prefix of one."""
    path: str
    """Path; of a snapshot relative to the folder of the manifest."""
    manifests: dict[str, dict[str, int]] = field(default_factory=dict)
    """Store -> bytes and crc32c of the manifest of its snapshot, which covers its files. A checkpoint has its own."""
    buckets: tuple[int, int] = (ALL_BUCKETS.start, ALL_BUCKETS.stop)
    """First bucket, and the one after the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportManifest:
    """Contents of an export."""

    name: str
    """Name of the model."""
    version: int
    kind: ExportKind
    created: int
    """Time of creation, Unix seconds."""
    step: int
    torch: str
    """Version of torch that made the graphs."""
    signatures: dict[str, Signature] = field(default_factory=dict)
    features: tuple[FeatureSpec, ...] = ()
    dense: tuple[DenseSpec, ...] = ()
    stores: dict[str, Any] = field(default_factory=dict)
    """Store -> its tables, in the form of `describe_tables`."""
    rows: RowsPlace | None = None
    shards: int = 0
    """Entry only: number of shards with the rows."""
    shard: int | None = None
    """Shard only: its number."""
    files: dict[str, dict[str, int]] = field(default_factory=dict)
    """Name -> bytes and crc32c."""

    def to_bytes(self) -> bytes:
        """Encodes the manifest."""
        signatures = {name: signature.to_json() for name, signature in self.signatures.items()}
        return seal({**asdict(self), "format": FORMAT, "format_version": VERSION, "signatures": signatures})

    @classmethod
    def from_bytes(cls, text: bytes, *, origin: str) -> ExportManifest:
        """Decodes the output of `to_bytes`.

        Raises:
            UnimplementedError: the manifest has another version.
            DataLossError: the text is not a valid manifest.
        """
        document = parse_manifest(text, subject=origin, format_name=FORMAT)
        version = document.get("format_version")
        if version not in (_UNSEALED, VERSION):
            raise UnimplementedError(
                f"{origin}: an export of version {version!r}; this build reads versions {_UNSEALED} and {VERSION}:"
                " export again"
            )
        values = document if version == _UNSEALED else require_seal(document, text, subject=origin)
        try:
            return cls(**_parts(values, origin))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise DataLossError(f"{origin}: not the manifest of an export: {error!r}") from error


def _parts(document: dict[str, Any], origin: str) -> dict[str, Any]:
    parts = {name: value for name, value in document.items() if name not in {"format", "format_version"}}
    parts["signatures"] = {
        name: Signature.from_json(signature, origin=f"{origin}, signature {name!r}")
        for name, signature in document["signatures"].items()
    }
    parts["features"] = tuple(_feature(feature) for feature in document["features"])
    parts["dense"] = tuple(_dense(column) for column in document["dense"])
    rows = document["rows"]
    parts["rows"] = None if rows is None else _rows(rows)
    if document["format_version"] != _UNSEALED:
        _require_sums(parts["rows"], document["stores"])
    numbers = ("version", "created", "step", "shards")
    if not all(_is_int(parts[name]) for name in numbers) or parts["kind"] not in get_args(ExportKind):
        raise TypeError(f"{[parts[name] for name in numbers]}, kind {parts['kind']!r}")
    texts, stores = (parts["name"], parts["torch"]), parts["stores"]
    if not all(isinstance(text, str) for text in texts) or not _is_int(parts["shard"], or_none=True):
        raise TypeError(f"name, torch and shard {[*texts, parts['shard']]}")
    if not all(is_name(name) and isinstance(folder, dict) for name, folder in stores.items()):
        raise TypeError(f"stores {list(stores)}")
    if not _are_sums(parts["files"]):
        raise TypeError(f"files {list(parts['files'])}")
    return parts


def _dense(document: dict[str, Any]) -> DenseSpec:
    width: Any = document["width"]
    is_sized = width is None or (_is_int(width) and 0 <= width < 2**31)
    if not is_sized or not all(isinstance(document[name], str) for name in ("name", "dtype")):
        raise TypeError(f"column {document}")
    return DenseSpec(**document)


def _is_int(value: Any, *, or_none: bool = False) -> bool:
    return (or_none and value is None) or (type(value) is int and -(2**63) <= value < 2**63)


def _are_sums(files: dict[str, Any]) -> bool:
    return all(
        is_name(name)
        and entry.keys() == {"bytes", "crc32c"}
        and all(type(value) is int and 0 <= value < 2**63 for value in entry.values())
        for name, entry in files.items()
    )


def _rows(document: dict[str, Any]) -> RowsPlace:
    rows = RowsPlace(**{**document, "buckets": tuple(document["buckets"])})
    begin, end = rows.buckets
    if not _is_int(begin) or not _is_int(end) or not _are_sums(rows.manifests) or not isinstance(rows.path, str):
        raise TypeError(f"rows {document}")
    if rows.kind == "snapshot" and not _BESIDE.fullmatch(rows.path):
        raise ValueError(f"rows at {rows.path!r}, expected 'rows' or '../../rows/<version>'")
    if rows.kind not in {"snapshot", "checkpoint"} or not ALL_BUCKETS.start <= begin < end <= ALL_BUCKETS.stop:
        raise TypeError(f"rows {document}")
    return rows


def _require_sums(rows: RowsPlace | None, stores: dict[str, Any]) -> None:
    if rows is not None and rows.kind == "snapshot" and rows.manifests.keys() != stores.keys():
        raise ValueError(f"checksums for the rows of {list(rows.manifests)}, expected of {list(stores)}")


def _feature(document: dict[str, Any]) -> FeatureSpec:
    feature = FeatureSpec(**{**document, "dims": tuple(document["dims"])})
    is_known = feature.pooling in POOLINGS and feature.id_layout in _ID_LAYOUTS
    texts = (feature.name, feature.store, feature.table, feature.source)
    counts = (*feature.dims, feature.max_sequence_length)
    are_typed = (
        all(isinstance(text, str) for text in texts)
        and all(_is_int(count) and 0 <= count < _LARGEST for count in counts)
        and all(_is_int(each, or_none=True) for each in (feature.number, feature.wide_index, feature.padding_id))
        and (feature.number is None or 0 <= feature.number < MAX_SLOT_NUMBER)
        and (feature.wide_index is None or 0 <= feature.wide_index < MAX_WIDE_SLOTS)
    )
    if not are_typed or not is_known or min(feature.dims, default=0) < 1:
        raise TypeError(f"feature {document}")
    if (feature.pooling == "firstn") != (feature.max_sequence_length > 0):
        raise TypeError(f"feature {document}")
    return feature
