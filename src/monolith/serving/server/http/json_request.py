"""Decodes JSON requests in the two forms of TF-Serving: ``instances`` has a row for each example, ``inputs`` columns.

Numbers are numbers, texts and bytes are ``"text"`` or ``{"b64": "..."}``. An input whose examples have differing
numbers of values is lists of differing length. If a signature has a single input, its name may be omitted.

The core decodes a body into arrays without the GIL, see `core/serving/json_request.h`: Python runs for a column, never
for a value, so that the time of a large body is not taken from other requests. `encode_answer` encodes answers, as
``predictions`` by row or ``outputs`` by column.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from monolith import _core
from monolith.errors import InternalError, InvalidArgumentError
from monolith.export import DEFAULT_SIGNATURE, InputSpec, Signature
from monolith.serving.request import SPLITS, VALUES, Column, is_encoded, require_examples, values_of_texts
from monolith.serving.tensor_messages import dtype_name, dtype_number
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    from torch import Tensor

    from monolith.data import TextColumn
    from monolith.serving.server.config import LimitsConfig
    from monolith.serving.server.registry import RegisteredModel

MAX_COLUMNS = 1 << 14
"""Maximum number of inputs of a request: far more than a signature has."""

# Kinds of values, as core/serving/json_request.h numbers them.
_WHOLE, _REAL, _TEXT, _BYTES, _BOOL, _NULL, _OBJECT, _UNSIGNED, _LARGE, _ROW_MIXED, _DEEP_MIXED, _NOT_BASE64 = (
    1 << bit for bit in range(12)
)
_STRINGS = _TEXT | _BYTES
_NAMES = {
    _DEEP_MIXED: "a list",
    _TEXT: "a text",
    _BYTES: "bytes",
    _BOOL: "true or false",
    _NULL: "null",
    _OBJECT: "an object",
    _REAL: "a number",
    _WHOLE: "an integer",
}


class _Decoded(NamedTuple):
    """A column as decoded by the core."""

    name: str
    kinds: int
    """Kinds of its values, as bits."""
    num_rows: int
    widths: list[int]
    """Length of lists by depth, rows first; -1 if lengths differ; empty if rows are single values."""
    splits: npt.NDArray[np.int64] | None
    """Row splits, if some rows are lists."""
    whole: npt.NDArray[np.int64] | None
    real: npt.NDArray[np.float64] | None
    data: bytes | None
    """Concatenated texts and bytes."""
    offsets: npt.NDArray[np.int64] | None


class JsonRequest(NamedTuple):
    """A decoded body, before the signature is resolved."""

    signature: str
    is_rows: bool
    """Whether it has rows; otherwise columns."""
    is_named: bool
    """Whether its columns have names; otherwise it has one column."""
    decoded: list[_Decoded]
    max_examples: int

    def columns(self, signature: Signature) -> dict[str, Column]:
        """Returns the columns for a signature."""
        if not self.decoded:
            raise InvalidArgumentError(f"inputs must not be empty; inputs are: {', '.join(signature.inputs)}")
        if self.is_named:
            named = {column.name: column for column in self.decoded}
        else:
            named = {_only_name(signature, "instances" if self.is_rows else "inputs"): self.decoded[0]}
        if is_encoded(named, signature):
            require_examples(self.decoded[0].num_rows, self.max_examples)
            return {name: _bytes_of(name, column) for name, column in named.items()}
        specs = {name: _spec_of(name, signature) for name in named}
        for name, column in named.items():
            if name in signature.inputs:
                require_examples(column.num_rows, self.max_examples)
        halves = {
            name: _half(name, column, specs[name]) for name, column in named.items() if name not in signature.inputs
        }
        return halves | {
            name: _column(name, column, specs[name]) for name, column in named.items() if name in signature.inputs
        }


def parse_request(body: bytes, limits: LimitsConfig) -> JsonRequest:
    """Parses the body of a request, within the limits of depth and examples."""
    signature, is_rows, is_named, columns = _core.parse_json_request(body, limits.json_depth, MAX_COLUMNS)
    decoded = [_Decoded(*column) for column in columns]
    return JsonRequest(signature or DEFAULT_SIGNATURE, is_rows, is_named, decoded, limits.examples)


def _only_name(signature: Signature, key: str) -> str:
    if len(signature.inputs) != 1:
        raise InvalidArgumentError(f"{key} must name its values; inputs are: {', '.join(signature.inputs)}")
    return next(iter(signature.inputs))


def _spec_of(name: str, signature: Signature) -> InputSpec:
    """Returns the specification of an input, or of the ragged input that it is a half of."""
    whole_name = name.rpartition("/")[0] if name.endswith((VALUES, SPLITS)) else name
    spec: InputSpec | None = signature.inputs.get(name) or signature.inputs.get(whole_name)
    if spec is None:
        raise InvalidArgumentError(f"input {name[:80]!r} is unknown; inputs are: {', '.join(signature.inputs)}")
    return spec


def _half(name: str, decoded: _Decoded, spec: InputSpec) -> Column:
    """Returns the values, or the row splits, of a ragged input that is sent as two."""
    if decoded.widths:
        raise InvalidArgumentError(f"input {name!r}: must be a list of numbers, got a list in it")
    if name.endswith(VALUES) and spec.texts is not None and decoded.kinds & _STRINGS:
        return values_of_texts(name, _ids_of_texts(name, decoded, spec.texts))
    return _numbers(name, decoded, spec) if name.endswith(VALUES) else _numbers(name, decoded, None)


def _column(name: str, decoded: _Decoded, spec: InputSpec) -> Column:
    if spec.dtype == "bytes":
        return _bytes_of(name, decoded)
    if spec.texts is not None and decoded.kinds & _STRINGS:
        return _ids_of_texts(name, decoded, spec.texts)
    values = _numbers(name, decoded, spec)
    is_ragged = spec.ragged or (spec.kind == "ids" and bool(decoded.widths))
    if (is_ragged and len(decoded.widths) > 1) or (not is_ragged and decoded.kinds & _ROW_MIXED):
        raise InvalidArgumentError(f"input {name!r}: must be {_expected(spec)}, got a list")
    if is_ragged:
        splits = torch.arange(decoded.num_rows + 1) if decoded.splits is None else torch.from_numpy(decoded.splits)
        return Ragged(values, splits, validate=False)
    if -1 in decoded.widths:
        raise InvalidArgumentError(f"input {name!r}: must have as many values in every example, got a ragged list")
    return values.reshape([decoded.num_rows, *decoded.widths]) if decoded.widths else values


def _ids_of_texts(name: str, decoded: _Decoded, texts: TextColumn) -> Tensor | Ragged:
    wrong = "a list in a list" if len(decoded.widths) > 1 else _wrong_kind(decoded.kinds, _STRINGS)
    if wrong is not None:
        raise InvalidArgumentError(f"input {name!r}: has texts, so that all values must be texts, got {wrong}")
    _require_base64(name, decoded)
    assert decoded.data is not None  # noqa: S101 - it has strings
    assert decoded.offsets is not None  # noqa: S101 - it has strings
    splits = None if decoded.splits is None else torch.from_numpy(decoded.splits)
    return texts.ids_of_packed(np.frombuffer(decoded.data, np.uint8), decoded.offsets, splits)


def _require_base64(name: str, decoded: _Decoded) -> None:
    if decoded.kinds & _NOT_BASE64:
        raise InvalidArgumentError(f"input {name!r}: b64 must be base64")


def _is_whole(spec: InputSpec | None) -> bool:
    """Returns whether an input takes only integers; row splits, which have no specification, do."""
    return spec is None or spec.kind == "ids" or spec.dtype.startswith(("int", "uint", "bool"))


def _is_bool(spec: InputSpec | None) -> bool:
    return spec is not None and spec.dtype == "bool"


def _expected(spec: InputSpec | None) -> str:
    if spec is not None and spec.texts is not None:
        return "texts, or integer ids"
    if _is_bool(spec):
        return "true, false or integers"
    return "integers" if _is_whole(spec) else "numbers"


def _numbers(name: str, decoded: _Decoded, spec: InputSpec | None) -> Tensor:
    """Returns all numbers of a column: int64 if integers are required or all are integers, otherwise float64."""
    kinds, is_whole = decoded.kinds, _is_whole(spec)
    if kinds == _WHOLE and decoded.whole is not None:  # nearly always, and right for every column of numbers
        return torch.from_numpy(decoded.whole)
    too_large = _LARGE if spec is not None and (spec.kind == "ids" or _is_bool(spec)) else _LARGE | _UNSIGNED
    if is_whole and kinds & too_large:
        raise InvalidArgumentError(f"input {name!r}: has a number that 64 bits do not hold")
    wrong = _wrong_kind(kinds, _WHOLE | (_BOOL if _is_bool(spec) else 0 if is_whole else _REAL))
    if wrong is not None:
        raise InvalidArgumentError(f"input {name!r}: must be {_expected(spec)}, got {wrong}")
    numbers = decoded.whole if is_whole or decoded.real is None else decoded.real
    return torch.zeros(0, dtype=torch.int64) if numbers is None else torch.from_numpy(numbers)


def _wrong_kind(kinds: int, allowed: int) -> str | None:
    """Returns the name of a kind of values that is not allowed; None if all are."""
    if not kinds & ~allowed:
        return None
    return next((word for kind, word in _NAMES.items() if kinds & kind & ~allowed), None)


def _bytes_of(name: str, decoded: _Decoded) -> list[bytes]:
    wrong = "a list" if decoded.widths else _wrong_kind(decoded.kinds, _STRINGS)
    if wrong is not None:
        raise InvalidArgumentError(f'input {name!r}: must be a text or {{"b64": "..."}}, got {wrong}')
    _require_base64(name, decoded)
    if decoded.data is None or decoded.offsets is None:
        return []
    return [decoded.data[begin:end] for begin, end in pairwise(decoded.offsets.tolist())]


METHOD = "tensorflow/serving/predict"
REFUSED_CODE = 9
"""FAILED_PRECONDITION of gRPC: a version that exists, but is not served."""


def encode_answer(outputs: Mapping[str, Tensor], *, is_rows: bool) -> bytes:
    """Encodes the body of an answer."""
    if is_rows and len(outputs) > 1:
        lists = [values.tolist() for values in outputs.values()]
        text = _json([dict(zip(outputs, row, strict=True)) for row in zip(*lists, strict=True)])
    elif len(outputs) == 1:
        text = _json_of(next(iter(outputs.values())))
    else:
        text = _joined([(name, _json_of(values)) for name, values in outputs.items()])
    if text is None:
        wrong = next(name for name, values in outputs.items() if not bool(values.isfinite().all()))
        raise InternalError(f"output {wrong!r}: the model answered NaN or an infinity")
    return b'{"%b":%b}' % (b"predictions" if is_rows else b"outputs", text)


def _joined(parts: list[tuple[str, bytes | None]]) -> bytes | None:
    members = [b"%b:%b" % (json.dumps(name).encode(), text) for name, text in parts if text is not None]
    return b"{%b}" % b",".join(members) if len(members) == len(parts) else None


def _json_of(values: Tensor) -> bytes | None:
    """Encodes values; None if one is not finite."""
    ndim, count = values.ndim, values.numel()
    if values.dtype is torch.float32 and ndim in (1, 2) and count and values.is_cpu and not values.is_neg():
        if not values.is_contiguous():
            values = values.contiguous()
        return _core.json_of_floats(values.data_ptr(), count, values.shape[1] if ndim > 1 else 0)
    return _json(values.tolist())


def _json(content: Any) -> bytes | None:
    try:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        return None


def version_text(version: Any) -> str:
    """Returns the version of an answer for its header: export, dense, sparse."""
    sparse = json.dumps(version.sparse, separators=(",", ":")) if version.sparse else "{}"
    return f'{{"export":{version.export},"dense":{version.dense},"sparse":{sparse}}}'


def status_message(entry: RegisteredModel) -> str:
    """Returns the status message of a version: why it is not ready, or why nothing newer is served."""
    return entry.model.why_not_ready or entry.model.problem or ""


def status_of(entries: list[RegisteredModel], labels: Mapping[str, int], refused: Mapping[int, str]) -> dict[str, Any]:
    """Returns the served versions of a model with their labels, and rejected versions with the reasons."""
    statuses = [
        {
            "version": str(entry.version),
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": status_message(entry)},
            "labels": sorted(label for label, version in labels.items() if version == entry.version),
        }
        for entry in entries
    ]
    for version, why in sorted(refused.items()):
        status = {"error_code": "FAILED_PRECONDITION", "error_message": why}
        statuses.append({"version": str(version), "state": "END", "status": status, "labels": []})
    return {"model_version_status": statuses}


def metadata_of(entry: RegisteredModel) -> dict[str, Any]:
    """Returns the signatures of a version."""
    described = {
        name: {
            "inputs": {column: _tensor_info(column, spec) for column, spec in signature.inputs.items()},
            "outputs": {column: _tensor_info(column, spec) for column, spec in signature.outputs.items()},
            "method_name": METHOD,
        }
        for name, signature in entry.model.signatures.items()
    }
    return {
        "model_spec": {"name": entry.name, "signature_name": "", "version": str(entry.version)},
        "metadata": {"signature_def": {"signature_def": described}},
    }


def number_of(dtype: str) -> int:
    """Returns the number of a type on the wire."""
    return dtype_number(None if dtype == "bytes" else getattr(torch, dtype))


def _tensor_info(name: str, spec: Any) -> dict[str, Any]:
    dims = [{"size": str(-1 if size is None else size), "name": ""} for size in spec.shape]
    return {
        "dtype": dtype_name(number_of(spec.dtype)),
        "tensor_shape": {"dim": dims, "unknown_rank": False},
        "name": name,
    }
