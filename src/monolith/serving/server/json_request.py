"""Requests as JSON, in the two forms of TF-Serving: ``instances`` has a row for each example, ``inputs`` columns.

Numbers are numbers, texts and bytes are ``"text"`` or ``{"b64": "..."}``. An input whose examples have differing
numbers of values is lists of differing length. Where a signature has one input only, its name may be left out.
"""

from __future__ import annotations

import binascii
import json
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import torch

from monolith import _core
from monolith.errors import InvalidArgumentError
from monolith.serving.server.columns import SPLITS, VALUES, is_encoded
from monolith.serving.server.model import DEFAULT_SIGNATURE
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from monolith.serving.server.columns import Column
    from monolith.serving.server.model import InputSpec, Signature

__all__ = ["JsonRequest", "parse_request"]

_B64 = "b64"
_KEYS = ("signature_name", "instances", "inputs")
_CUT_OUT = b"*"
"""Stands for a text of base64 while the rest is parsed; it is none itself."""
_USUAL_BYTES = 1024
"""What is left of a usual document without its text, at most."""
_NUMBERS = frozenset({int, float})


class JsonRequest(NamedTuple):
    """What a body says, before the signature is known."""

    signature: str
    is_rows: bool
    """Whether it has rows; otherwise columns."""
    content: Any

    def columns(self, signature: Signature) -> dict[str, Column]:
        """The columns that it means to a signature.

        Raises:
            InvalidArgumentError: something that is no column.
        """
        named = _columns_of_rows(self.content, signature) if self.is_rows else _named_columns(self.content, signature)
        if is_encoded(named, signature):
            return {name: [_bytes_of(name, each) for each in rows] for name, rows in named.items()}
        return {name: _column(name, rows, _spec_of(name, signature)) for name, rows in named.items()}


def parse_request(body: bytes, *, max_depth: int) -> JsonRequest:
    """A request as it stands in a body.

    Raises:
        InvalidArgumentError: no JSON, nested too deeply, or not of these forms.
    """
    try:
        document = _document_with_bytes(body) or json.loads(body)
    except RecursionError:
        raise InvalidArgumentError(f"the body is JSON nested deeper than {max_depth}") from None
    except ValueError as error:
        raise InvalidArgumentError(f"the body must be JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidArgumentError(f"the body must be an object with 'instances' or 'inputs', got {_type(document)}")
    unknown = [key for key in document if key not in _KEYS]
    if unknown:
        raise InvalidArgumentError(f"the body has the unknown key {unknown[0]!r}; keys are: {', '.join(_KEYS)}")
    if ("instances" in document) == ("inputs" in document):
        raise InvalidArgumentError("the body must have one of 'instances' and 'inputs'")
    signature = document.get("signature_name", DEFAULT_SIGNATURE)
    if not isinstance(signature, str):
        raise InvalidArgumentError(f"signature_name must be a text, got {_type(signature)}")
    is_rows = "instances" in document
    content = document["instances" if is_rows else "inputs"]
    _require_depth(content, max_depth)
    return JsonRequest(signature or DEFAULT_SIGNATURE, is_rows, content)


def _document_with_bytes(body: bytes) -> Any:
    """The document of a body that is one long text of base64 for the greater part; None: it is another one.

    The text is decoded where it stands: a parser of JSON would look at each letter, and make a second text of them.
    """
    cut = _core.cut_long_text(body, _CUT_OUT)
    if cut is None:
        return None
    decoded, rest = cut
    place = _usual_place(rest) if len(rest) <= _USUAL_BYTES else None
    if place is not None:
        key, name, others = place
        return {key: {name: {_B64: decoded}}, **others}
    document = json.loads(rest)
    places = _cut_out_places(document)
    if len(places) != 1:  # another value is the same as the mark
        return None
    places[0][_B64] = decoded
    return document


@lru_cache(maxsize=256)
def _usual_place(rest: bytes) -> tuple[str, str, dict[str, str]] | None:
    """Where the long text belongs in a document that has one column and nothing else: its key, its name, other keys.

    It is remembered, as a client sends the same frame around each text.
    """
    try:
        document = json.loads(rest)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(inputs := document.pop("inputs", None), dict):
        return None
    if list(inputs.values()) != [{_B64: _CUT_OUT.decode()}] or not all(
        isinstance(each, str) for each in document.values()
    ):
        return None
    return "inputs", next(iter(inputs)), document


def _cut_out_places(document: Any) -> list[dict[str, Any]]:
    """Objects of a document whose text of base64 is the mark."""
    places: list[dict[str, Any]] = []
    left = [document]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            if value.get(_B64) == _CUT_OUT.decode():
                places.append(value)
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
    return places


def _require_depth(content: Any, limit: int) -> None:
    """Refuses nesting that no form has; looks at the first value of each list only, as shapes are checked later."""
    depth = 1
    while isinstance(content, list | dict) and content:
        depth += 1
        if depth > limit:
            raise InvalidArgumentError(f"the body is JSON nested deeper than {limit}")
        content = content[0] if isinstance(content, list) else next(iter(content.values()))


def _columns_of_rows(rows: Any, signature: Signature) -> dict[str, list[Any]]:
    if not isinstance(rows, list) or not rows:
        raise InvalidArgumentError(f"instances must be a list of at least one example, got {_type(rows)}")
    first = rows[0]
    if not _is_object(first):
        if any(map(_is_object, rows)):
            raise InvalidArgumentError("instances must be all objects or all values")
        return {_only_name(signature, "instances"): rows}
    names = list(first)
    for number, row in enumerate(rows):
        if not _is_object(row) or len(row) != len(names):
            _refuse_row(number, row, names)
    try:
        return {name: [row[name] for row in rows] for name in names}
    except KeyError:
        number = next(number for number, row in enumerate(rows) if set(row) != set(names))
        _refuse_row(number, rows[number], names)


def _refuse_row(number: int, row: Any, names: list[str]) -> NoReturn:
    got = ", ".join(row) if isinstance(row, dict) else _type(row)
    raise InvalidArgumentError(f"instances: example {number} must have {', '.join(names)} as the first one, got {got}")


def _named_columns(content: Any, signature: Signature) -> dict[str, list[Any]]:
    named = content if _is_object(content) else {_only_name(signature, "inputs"): content}
    if not named:
        raise InvalidArgumentError(f"inputs must not be empty; inputs are: {', '.join(signature.inputs)}")
    return {name: each if isinstance(each, list) else [each] for name, each in named.items()}


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and not (len(value) == 1 and _B64 in value)


def _only_name(signature: Signature, key: str) -> str:
    if len(signature.inputs) != 1:
        raise InvalidArgumentError(f"{key} must name its values; inputs are: {', '.join(signature.inputs)}")
    return next(iter(signature.inputs))


def _spec_of(name: str, signature: Signature) -> InputSpec | None:
    found: InputSpec | None = signature.inputs.get(name)
    if found is None and name.endswith((VALUES, SPLITS)):
        return None  # half of a ragged column
    if found is None:
        raise InvalidArgumentError(f"input {name!r} is unknown; inputs are: {', '.join(signature.inputs)}")
    return found


def _column(name: str, rows: list[Any], spec: InputSpec | None) -> Column:
    if spec is None:
        return torch.from_numpy(_array(name, rows, wants_whole=all(type(each) is int for each in rows)))
    if spec.dtype == "bytes":
        return [_bytes_of(name, each) for each in rows]
    wants_whole = spec.kind == "ids" or spec.dtype.startswith(("int", "uint"))
    if spec.ragged or (spec.kind == "ids" and list in set(map(type, rows))):
        return _ragged(name, rows, wants_whole=wants_whole)
    shape = [len(rows)]
    kinds = set(map(type, rows))
    while kinds == {list}:
        lengths = set(map(len, rows))
        if len(lengths) > 1:
            raise InvalidArgumentError(f"input {name!r}: must have as many values in every example, got a ragged list")
        shape.append(lengths.pop())
        rows = list(chain.from_iterable(rows))
        kinds = set(map(type, rows))
    return torch.from_numpy(_array(name, rows, wants_whole=wants_whole).reshape(shape))


def _ragged(name: str, rows: list[Any], *, wants_whole: bool) -> Ragged:
    if list not in set(map(type, rows)):
        lengths = np.ones(len(rows), dtype=np.int64)
        flat = rows
    else:
        rows = [each if type(each) is list else [each] for each in rows]
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        flat = list(chain.from_iterable(rows))
    splits = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=splits[1:])
    values = torch.from_numpy(_array(name, flat, wants_whole=wants_whole))
    return Ragged(values, torch.from_numpy(splits), validate=False)


def _array(name: str, flat: list[Any], *, wants_whole: bool) -> np.ndarray[Any, Any]:
    kinds = set(map(type, flat))
    if not kinds <= ({int} if wants_whole else _NUMBERS):
        wrong = next(each for each in flat if type(each) not in ({int} if wants_whole else _NUMBERS))
        wanted = "whole numbers" if wants_whole else "numbers"
        raise InvalidArgumentError(f"input {name!r}: must be {wanted}, got {_type(wrong)}")
    try:
        if not wants_whole:
            with np.errstate(over="ignore"):  # what becomes infinite is refused as such
                return np.array(flat, dtype=np.float32)
        try:
            return np.fromiter(flat, dtype=np.int64, count=len(flat))
        except OverflowError:  # ids are 64 bits, and may be written without a sign
            return np.array(flat, dtype=np.uint64).view(np.int64)
    except (OverflowError, ValueError):
        raise InvalidArgumentError(f"input {name!r}: has a number that 64 bits do not hold") from None


def _bytes_of(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    given = value.get(_B64) if isinstance(value, dict) and len(value) == 1 else None
    if isinstance(given, bytes):
        return given
    if isinstance(given, str):
        try:
            return binascii.a2b_base64(given, strict_mode=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidArgumentError(f"input {name!r}: b64 must be base64: {error}") from None
    raise InvalidArgumentError(f'input {name!r}: must be a text or {{"b64": "..."}}, got {_type(value)}')


def _type(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number") if value != [] else "an empty list"
