"""Bases of a log: states from which a reader may start, each with the number of its last increment in every part."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from monolith.deltalog.parts import store_of
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.files import is_name

if TYPE_CHECKING:
    from collections.abc import Mapping

BaseKind = Literal["snapshots", "checkpoint"]
_SUFFIX = ".json"


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

    @property
    def document(self) -> str:
        """Name of the document that describes this base."""
        return self.name + _SUFFIX

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
            if not all(is_name(each) for each in base.stores.values()) or type(document["path"]) is not str:
                raise TypeError(f"folders are {document['path']!r}, {base.stores}")  # noqa: TRY301 - the same
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise DataLossError(f"{origin}: not the description of a base: {error}") from error
        return base
