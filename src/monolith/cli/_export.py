"""``monolith checkpoint export --serving``: a checkpoint as a model that answers without its code."""

from __future__ import annotations

import io
import json
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from monolith.checkpoint import SavedState, resolve
from monolith.cli._run_options import find_tasks_here
from monolith.data import Batch, TextColumn
from monolith.errors import InvalidArgumentError
from monolith.observe import Progress
from monolith.serving import export
from monolith.tensors import Ragged
from monolith.train import find_task

if TYPE_CHECKING:
    import argparse


def export_for_serving(args: argparse.Namespace) -> tuple[Any, str, int]:
    """Writes a version; what to print, as JSON and as a line, and the status."""
    if args.task is None:
        raise ValueError("export --serving: give the task that makes the model: --task module:Class")
    find_tasks_here()
    params = find_task(args.task)
    checkpoint = resolve(args.path)
    manifest = SavedState(checkpoint).manifest
    rows = sum(sum(tables.rows.values()) for tables in manifest.tables.values())
    with Progress(total=rows, unit="rows", file=io.StringIO() if args.json else None) as bar:
        folder = export(
            checkpoint,
            args.target,
            task=params,
            example=None if args.example is None else example_of(args.example),
            shards=args.shards or 0,
            version=args.version,
            checkpoint=checkpoint if args.shared_embedding else None,
            on_rows=bar.update,
        )
    document = {"checkpoint": checkpoint, "step": manifest.step, "kind": manifest.kind, "folder": folder}
    return document, folder, 0


def example_of(text: str) -> Batch:
    """Columns by name, as the ``inputs`` of a request: a list with one value, or a list of them, for each example.

    Values are numbers or texts. Texts become ids as in datasets, and requests to the export have texts, too.

    Args:
        text: The JSON itself, or the path of a file that contains it.

    Raises:
        InvalidArgumentError: it is something else.
    """
    origin = "--example" if text.lstrip().startswith("{") else f"example '{text}'"
    try:
        document = json.loads(text if origin == "--example" else Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"{origin}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{origin}: not JSON: {error}") from error
    if isinstance(document, dict) and document.keys() == {"inputs"}:
        document = document["inputs"]
    if not isinstance(document, dict) or not all(isinstance(values, list) and values for values in document.values()):
        raise InvalidArgumentError(f'{origin}: expected columns by name, such as {{"user": [7, 8]}}')
    texts = {name: TextColumn(name) for name, values in document.items() if _has_text(values)}
    columns = {name: _column(name, values, origin, texts.get(name)) for name, values in document.items()}
    try:
        return Batch(columns, texts=texts)
    except ValueError as error:
        raise InvalidArgumentError(f"{origin}: {error}") from error


def _has_text(values: list[Any]) -> bool:
    rows = (row if isinstance(row, list) else [row] for row in values)
    return any(isinstance(value, str) for row in rows for value in row)


def _column(name: str, values: list[Any], origin: str, texts: TextColumn | None) -> Any:
    try:
        if texts is not None:
            return _ids(values, texts)
        try:
            return torch.tensor(values)
        except ValueError:  # rows of different lengths
            flat = torch.tensor([value for row in values for value in row])
            return Ragged.from_lengths(flat, [len(row) for row in values])
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InvalidArgumentError(
            f"{origin}, column {name!r}: expected a number or a text for each example, or a list of numbers or of"
            f" texts: {error}"
        ) from error


def _ids(values: list[Any], texts: TextColumn) -> torch.Tensor | Ragged:
    """Returns the ids of texts."""
    if not isinstance(values[0], list):
        return texts.ids(values)
    if not all(isinstance(row, list) for row in values):
        raise TypeError("some examples have a list, others do not")
    splits = torch.tensor([0, *accumulate(map(len, values))])
    return texts.ids([value for row in values for value in row], splits)
