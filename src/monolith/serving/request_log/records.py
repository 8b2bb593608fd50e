"""A record of the log: the impression of one example, as `monolith joiner` reads it.

It is a ``JoinEvent`` whose sample is an ``Example`` with the features of the request and the answer: the feature
``__SERVED__`` has model, signature, version, request and index in it as JSON, and ``__SERVED__/NAME`` the output of
that name. The joiner copies all of it to its examples.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch

from monolith.online.joiner.events import impression_record
from monolith.serving.request_log.encoded_requests import SERVED, first_id_of, requested_examples
from monolith.serving.request_log.features import ExampleFeatures
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from torch import Tensor

    from monolith.serving.request_log.answered import AnsweredRequest

__all__ = ["records_of"]

_ITEM_MASK = (1 << 64) - 1


def records_of(request: AnsweredRequest, *, time_ms: int, item_column: str | None = None) -> list[bytes]:
    """Returns the records of a request, in the order of its examples.

    Args:
        request: The answered request.
        time_ms: Time of the request, Unix milliseconds.
        item_column: Column with the item of an example; if None or not in the request, the index of the example is
            used.

    Raises:
        DataLossError: the encoded samples are invalid.
    """
    samples, items = _encoded(request, item_column) if request.is_encoded else _columns(request, item_column)
    answers = _answers(request)
    return [
        impression_record(request.request_id, item & _ITEM_MASK, time_ms=time_ms, sample=sample + answer)
        for item, sample, answer in zip(items, samples, answers, strict=True)
    ]


def _columns(request: AnsweredRequest, item_column: str | None) -> tuple[list[bytes], list[int]]:
    count = request.num_examples
    features = ExampleFeatures(count)
    for name, column in request.columns.items():
        if isinstance(column, list):
            features.add_texts(name, column)
        else:
            features.add_numbers(name, column, is_ids=request.inputs[name].kind == "ids")
    found = None if item_column is None else request.columns.get(item_column)
    items = list(range(count)) if found is None or isinstance(found, list) else _first_ids(found)
    return features.rows(), items * count if len(items) == 1 else items


def _encoded(request: AnsweredRequest, item_column: str | None) -> tuple[list[bytes], list[int]]:
    ((form, samples),) = request.columns.items()
    examples = requested_examples(form, samples if isinstance(samples, list) else [])
    items = list(range(len(examples)))
    if item_column is not None:
        items = [first_id_of(example, item_column) for example in examples]
    return [example.SerializeToString() for example in examples], items


def _first_ids(column: Tensor | Ragged) -> list[int]:
    if not isinstance(column, Ragged):
        return [int(each) for each in column.reshape(column.shape[0], -1)[:, 0].tolist()]
    values = column.flat_values
    starts, lengths = column.row_splits[:-1], column.lengths()
    if not len(values):
        return [0] * column.num_rows
    firsts = values[starts.clamp(max=len(values) - 1)]
    return [int(each) for each in torch.where(lengths > 0, firsts, torch.zeros_like(firsts)).tolist()]


def _answers(request: AnsweredRequest) -> list[bytes]:
    """Returns the encoded answer of each example; an output that is not per example is repeated in each."""
    count, version = request.num_examples, request.version
    told = json.dumps(
        {
            "request": request.request_id.decode("latin-1"),
            "model": request.model,
            "signature": request.signature,
            "export": int(version.export),
            "dense": int(version.dense),
            "sparse": {str(part): int(number) for part, number in version.sparse.items()},
            "examples": count,
        },
        separators=(",", ":"),
    )
    head = told.removesuffix("}").encode()
    features = ExampleFeatures(count)
    features.add_texts(SERVED, [b'%b,"example":%d}' % (head, number) for number in range(count)])
    for name, values in request.outputs.items():
        by_example = values.ndim > 0 and values.shape[0] == count
        features.add_numbers(f"{SERVED}/{name}", values if by_example else values.reshape(1, -1))
    return features.rows()
