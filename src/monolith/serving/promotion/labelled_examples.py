"""Labelled examples for judging versions, from a file of JSON lines."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from monolith.errors import InvalidArgumentError
from monolith.files import named_errors
from monolith.serving.server.columns import fit
from monolith.serving.server.config import Limits
from monolith.serving.server.http.json_request import parse_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from monolith.serving.server.columns import Column
    from monolith.serving.server.model import Signature

__all__ = ["LabelledExamples"]

MOST_EXAMPLES = 100_000
"""Maximum number of examples of a file, since they are scored for each export and each set of dense weights."""
MOST_BYTES = 256 << 20
"""Maximum size of a file."""
_AT_A_TIME = 256
"""Examples per call of a model; small, so that requests are served in between."""


@dataclass(frozen=True, slots=True)
class LabelledExamples:
    """Examples in the form of requests, with their labels."""

    rows: list[dict[str, Any]]
    labels: Tensor
    """float32 ``[n]``: 0 or 1."""
    origin: str

    @classmethod
    def read(cls, path: str, label: str) -> LabelledExamples:
        """Reads the examples of a file: a line is an object as in ``instances``, with a label in addition.

        Raises:
            NotFoundError: the file does not exist.
            InvalidArgumentError: the file is too large, empty, or has an invalid line; the message names it.
        """
        origin = f"examples '{path}'"
        with named_errors(path, "read"):
            size = Path(path).stat().st_size
            if size > MOST_BYTES:
                raise InvalidArgumentError(f"{origin}: may have {MOST_BYTES} bytes, got {size}; take a sample")
            lines = Path(path).read_bytes().splitlines()
        rows: list[dict[str, Any]] = []
        labels: list[float] = []
        for number, line in enumerate(lines, start=1):
            if line.strip():
                row, value = _parsed(line, label, place=f"{origin}, line {number}")
                rows.append(row)
                labels.append(value)
        if not 0 < len(rows) <= MOST_EXAMPLES:
            raise InvalidArgumentError(f"{origin}: must have from 1 to {MOST_EXAMPLES} examples, got {len(rows)}")
        return cls(rows, torch.tensor(labels), origin)

    def batches(self, signature: Signature) -> Iterator[dict[str, Column]]:
        """Yields columns for a signature, in batches.

        Raises:
            InvalidArgumentError: the examples do not fit the signature.
        """
        for begin in range(0, len(self.rows), _AT_A_TIME):
            rows = self.rows[begin : begin + _AT_A_TIME]
            wanted = [{name: value for name, value in row.items() if name in signature.inputs} for row in rows]
            columns = parse_request(json.dumps({"instances": wanted}).encode(), Limits()).columns(signature)
            yield fit(columns, signature, max_examples=_AT_A_TIME).columns


def _parsed(line: bytes, label: str, *, place: str) -> tuple[dict[str, Any], float]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{place}: must be a JSON object: {error}") from None
    if not isinstance(row, dict) or label not in row:
        raise InvalidArgumentError(f"{place}: must be a JSON object with the label under {label!r}")
    value = row[label]
    if isinstance(value, bool) or value not in (0, 1):
        raise InvalidArgumentError(f"{place}: the label {label!r} must be 0 or 1, got {value!r}")
    return row, float(value)
