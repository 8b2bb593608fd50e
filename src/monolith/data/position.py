"""Positions of datasets: canonical JSON, one object for each stage, that of its source inside it.

    {"dataset":"shuffle","emitted":3,"rows":64,"seed":1,"source":{"dataset":"files",...},"window":2}

Stages that neither hold back nor reorder elements (`map`, `filter`, `prefetch`) have the position of their source, so
they can be added and taken away between a save and a restore.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

NEXT_ACTION = (
    "build the dataset as the one that the position was saved from. To train the model on another input, begin a new"
    " model_dir with --restore_dir OLD --restart_input (docs/how-to/checkpoints.md)"
)
"""For messages about a position that does not fit the dataset."""
_FOREIGN = "base64"
"""The only key of an object that holds the position of a dataset that does not write JSON."""


def encode_position(dataset: str, fields: Mapping[str, Any]) -> bytes:
    """Returns the position of a kind of dataset, with the fields to resume from; equal fields give equal bytes.

    >>> encode_position("take", {"taken": 3})
    b'{"dataset":"take","taken":3}'
    """
    return _canonical({**fields, "dataset": dataset})


def nested(position: bytes) -> Any:
    """Returns a position as a value to put into another one; `SavedPosition.position` gives it back, byte for byte."""
    try:
        value = json.loads(position)
    except ValueError:
        value = None
    if isinstance(value, dict) and _canonical(value) == position:
        return value
    return {_FOREIGN: base64.b64encode(position).decode("ascii")}


class SavedPosition:
    """The fields of a position from which a dataset resumes, with their types checked.

    Args:
        position: Position of a reading.
        dataset: The kind of dataset that resumes.

    Raises:
        InvalidArgumentError: it is not a position, or one of another kind of dataset.
    """

    def __init__(self, position: bytes, dataset: str) -> None:
        self._dataset = dataset
        try:
            fields = json.loads(position)
        except (TypeError, ValueError) as error:
            raise self._wrong(f"expected JSON, got {position[:60]!r}") from error
        kind = fields.get("dataset") if isinstance(fields, dict) else None
        if kind != dataset:
            raise self._wrong(f"it was saved by a dataset of kind {kind!r}")
        self._fields: dict[str, Any] = fields

    def require_same(self, **own: Any) -> Self:
        """Checks that the dataset that saved the position was built with these arguments."""
        for name, value in own.items():
            saved = self._field(name)
            if saved != value:
                raise self._wrong(f"it was saved with {name} {saved!r}, this dataset has {value!r}")
        return self

    def require_share(self, name: str, own: tuple[int, int]) -> Self:
        """Checks that the position is of the same share (index, count); one that has no such field is of all."""
        self._fields.setdefault(name, [0, 1])
        return self.require_same(**{name: list(own)})

    def number(self, name: str) -> int:
        """Returns a non-negative integer."""
        value = self._field(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(f"{name} must be an integer >= 0, got {value!r}")
        return value

    def position(self, name: str) -> bytes:
        """Returns a position that was put in by `nested`."""
        return self._unnested(name, self._field(name))

    def optional_position(self, name: str) -> bytes | None:
        """Returns a position that was put in by `nested`, or None."""
        value = self._field(name)
        return None if value is None else self._unnested(name, value)

    def positions(self, name: str) -> list[bytes]:
        """Returns a list of positions that were put in by `nested`."""
        return [self._unnested(name, value) for value in self.values(name)]

    def values(self, name: str) -> list[Any]:
        """Returns a list of anything."""
        value = self._field(name)
        if not isinstance(value, list):
            raise self._wrong(f"{name} must be a list, got {value!r}")
        return value

    def _field(self, name: str) -> Any:
        if name not in self._fields:
            raise self._wrong(f"it has no {name}")
        return self._fields[name]

    def _unnested(self, name: str, value: Any) -> bytes:
        if not isinstance(value, dict):
            raise self._wrong(f"{name} must be a position, got {value!r}")
        if value.keys() == {_FOREIGN}:
            try:
                return base64.b64decode(value[_FOREIGN], validate=True)
            except (TypeError, ValueError) as error:
                raise self._wrong(f"{name}: {error}") from error
        return _canonical(value)

    def _wrong(self, text: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"position for a dataset of kind {self._dataset!r}: {text}; {NEXT_ACTION}")


def known_times(position: bytes) -> tuple[int, int] | None:
    """Returns when the examples of the batch before a position were available: oldest and newest, Unix milliseconds.

    None: neither the position nor that of its source has this field (``known_ms``).
    """
    try:
        oldest, newest = _innermost_field(position, "known_ms")
        return int(oldest), int(newest)
    except (TypeError, ValueError):
        return None


def known_examples(position: bytes) -> int | None:
    """Returns the number of examples that were returned before a position, from the beginning of the input.

    None: neither the position nor that of its source has this field (``examples``).
    """
    examples = _innermost_field(position, "examples")
    return examples if type(examples) is int and examples >= 0 else None


def _innermost_field(position: bytes, field: str) -> Any:
    """Returns a field of the first stage that has it, from the last stage inwards; None: none has it."""
    try:
        fields: Any = json.loads(position)
    except ValueError:
        return None
    while isinstance(fields, dict) and field not in fields:
        fields = fields.get("source")
    return fields[field] if isinstance(fields, dict) else None


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")
