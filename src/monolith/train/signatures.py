"""What an exported model can be asked: ``<prefix>.signatures.json``, see ``docs/formats/export.md``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import fsspec
from torch import Tensor

from monolith.data.batch import Batch
from monolith.errors import InvalidArgumentError
from monolith.tensors import Ragged
from monolith.train.step_result import num_examples_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.train.session import Session

__all__ = ["DEFAULT_SIGNATURE", "SUFFIX", "describe_signatures", "write_signatures"]

DEFAULT_SIGNATURE = "serving_default"
"""The signature of a task that names none."""

SUFFIX = ".signatures.json"

FORMAT = "monolith-signatures"
VERSION = 1


def describe_signatures(session: Session, example: Any = None) -> dict[str, Any]:
    """The signatures of a session's task: what each one reads and, if there is an example, what it gives.

    Args:
        session: In mode ``predict``; with an example, a step is run for each signature.
        example: A batch with all columns; None leaves types and outputs open.

    Raises:
        ValueError: a signature without columns, with one that neither the example nor a slot has, or with too few for
            the model.
    """
    slots = {name: slot for each in session.state.embeddings.values() for name, slot in each.slots.items()}
    columns = dict(example) if isinstance(example, Mapping) else {}
    if example is not None and not columns:
        raise ValueError(f"export: example must be a batch with columns by name, got {type(example).__name__}")
    wanted = {name: list(reads) for name, reads in session.task.signatures().items()}
    wanted = wanted or {DEFAULT_SIGNATURE: list(columns or slots)}
    described = {}
    for name, reads in sorted(wanted.items()):
        _require_columns(name, reads, known=columns or slots, is_complete=bool(columns))
        inputs = {
            column: {
                **({"kind": "ids", "dim": slots[column].dim} if column in slots else {"kind": "dense"}),
                **(_shape_of(columns[column]) if column in columns else {}),
            }
            for column in reads
        }
        described[name] = {"inputs": inputs, "outputs": _outputs(session, name, reads, example) if columns else None}
    return {
        "format": FORMAT,
        "version": VERSION,
        "task": str(session.task.p.name),
        "global_step": session.global_step,
        "signatures": described,
    }


def write_signatures(prefix: str, document: Mapping[str, Any]) -> str:
    """Writes them beside the checkpoint of this prefix; returns the path."""
    path = f"{prefix}{SUFFIX}"
    text = f"{json.dumps(document, indent=1, sort_keys=True)}\n"
    with fsspec.open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def _require_columns(name: str, reads: Sequence[str], *, known: Mapping[str, Any], is_complete: bool) -> None:
    if not reads:
        raise ValueError(f"signature {name!r}: it reads no column; name those that its requests have")
    missing = [column for column in reads if column not in known]
    if missing and is_complete:
        raise ValueError(
            f"signature {name!r}: column {missing[0]!r} is not in the example, which has {', '.join(known)}"
        )


def _outputs(session: Session, name: str, reads: Sequence[str], example: Any) -> dict[str, Any]:
    columns = {column: example[column] for column in reads}
    batch = Batch(columns, num_rows=example.num_rows) if isinstance(example, Batch) else columns
    try:
        predictions = session.run(batch).predictions
    except (KeyError, InvalidArgumentError) as error:
        raise ValueError(f"signature {name!r}: the model cannot answer from {', '.join(reads)}: {error}") from error
    if predictions is None:
        raise ValueError(
            f"signature {name!r}: model_fn gives no predictions in mode 'predict'; return Spec(predictions=...)"
        )
    named = predictions if isinstance(predictions, Mapping) else {"predictions": predictions}
    rows = num_examples_of(batch)
    return {output: _shape_of(values, rows=rows) for output, values in sorted(named.items())}


def _shape_of(values: Any, rows: int | None = None) -> dict[str, Any]:
    """Type and shape; None stands for the number of examples, and for what differs between rows."""
    if isinstance(values, Ragged):
        return {"dtype": _dtype(values.flat_values), "shape": [None] * 2, "ragged": True}
    if isinstance(values, Tensor):
        by_example = values.ndim > 0 and (rows is None or values.shape[0] == rows)
        return {"dtype": _dtype(values), "shape": [None, *values.shape[1:]] if by_example else list(values.shape)}
    return {"dtype": "bytes", "shape": [None]}


def _dtype(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")
