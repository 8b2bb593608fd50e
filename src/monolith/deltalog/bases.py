"""Bases of a log: where a reader may begin, and the numbers behind which the log goes on from there."""

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
    """A state of all tables, and the position that it has reached."""

    name: str
    kind: BaseKind
    """``snapshots``: a folder with a snapshot of serving rows for each store. ``checkpoint``: the prefix of one."""
    path: str
    numbers: dict[str, int]
    """Part -> number of the last increment that is contained."""
    stores: dict[str, str] = field(default_factory=dict)
    """Store -> its folder below `path`; the manifest of a checkpoint says that itself, and names alone count here."""
    created_ms: int = 0
    step: int = 0
    dense: str | None = None
    """File of the dense weights below `path`; None: they are in the log, or nowhere."""
    after: dict[str, int] = field(default_factory=dict)
    """Part -> number of its last increment: of others that had these rows before. They come first: what they wrote must
    not come over this."""

    def __post_init__(self) -> None:
        if not is_name(self.name) or self.name.startswith("."):
            raise InvalidArgumentError(f"delta log: the name of a base must be that of a file, got {self.name!r}")

    @property
    def document(self) -> str:
        """Name of its document."""
        return self.name + _SUFFIX

    def holds(self, part: str) -> bool:
        """Whether a reader can begin a part here: the position is known, and the rows or weights are there."""
        if part not in self.numbers:
            return False
        rows = store_of(part)
        if rows is not None:
            return rows[0] in self.stores
        return self.dense is not None or self.kind == "checkpoint"

    def at(self, numbers: Mapping[str, int]) -> Base:
        """The same state at another position."""
        return replace(self, numbers={**self.numbers, **numbers})

    def to_bytes(self) -> bytes:
        """The text of its document."""
        return json.dumps({**asdict(self), "format": "monolith-base", "version": 1}, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, text: bytes, *, origin: str) -> Base:
        """What `to_bytes` wrote.

        Raises:
            DataLossError: anything else.
        """
        try:
            document: dict[str, Any] = json.loads(text)
            if document.pop("format") != "monolith-base" or document.pop("version") != 1:
                raise ValueError("not a base of version 1")  # noqa: TRY301 - one place tells what is wrong
            base = cls(**document)
            if not all(type(number) is int for number in (*base.numbers.values(), *base.after.values())):
                raise TypeError(f"numbers are {base.numbers}, {base.after}")  # noqa: TRY301 - the same
            if not all(is_name(each) for each in base.stores.values()) or type(document["path"]) is not str:
                raise TypeError(f"folders are {document['path']!r}, {base.stores}")  # noqa: TRY301 - the same
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise DataLossError(f"{origin}: not the description of a base: {error}") from error
        return base
