"""Encodes answers as JSON like TF-Serving: ``predictions`` by row or ``outputs`` by column, status and metadata."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from monolith import _core
from monolith.errors import InternalError
from monolith.serving.tensor_messages import dtype_name, dtype_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from monolith.serving.server.registry import RegisteredModel

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
