"""Converts requests of encoded samples to one Example per example, without data of the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from monolith.data.conversions import (
    LABEL_FEATURE,
    FeaturePruning,
    example_of_instance,
    examples_of_batch,
    with_typed_fields,
)
from monolith.data.protos.example_pb2 import Example, ExampleBatch
from monolith.data.protos.instance_pb2 import Instance
from monolith.errors import DataLossError
from monolith.ids import v1_to_v2

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SERVED", "first_id_of", "requested_examples"]

SERVED = "__SERVED__"
"""Feature of a logged example with metadata of its answer; with the suffix ``/NAME``, the output of that name."""


def requested_examples(form: str, samples: Sequence[bytes]) -> list[Example]:
    """Returns the requested examples, without labels and without features of an earlier answer.

    Args:
        form: ``examples``, ``instances`` or ``example_batch``.
        samples: The bytes of such messages.

    Raises:
        DataLossError: the bytes are not such messages.
    """
    try:
        if form == "example_batch":
            batches = [ExampleBatch.FromString(each) for each in samples]
            examples = [each for batch in batches for each in examples_of_batch(batch, FeaturePruning.AS_IS)]
        elif form == "instances":
            examples = [example_of_instance(Instance.FromString(each)) for each in samples]
        else:
            examples = [with_typed_fields(Example.FromString(each)) for each in samples]
    except DecodeError as error:
        raise DataLossError(f"{form}: the bytes are no such message") from error
    for example in examples:
        example.ClearField("label")
        kept = [each for each in example.named_feature if not each.name.startswith((SERVED, LABEL_FEATURE))]
        if len(kept) < len(example.named_feature):
            features = [each.SerializeToString() for each in kept]
            example.ClearField("named_feature")
            for each in features:
                example.named_feature.add().MergeFromString(each)
    return examples


def first_id_of(example: Example, name: str) -> int:
    """Returns the first id of a feature, or its first integer; 0 if there is none."""
    for named in example.named_feature:
        if named.name != name:
            continue
        kind = named.feature.WhichOneof("type")
        if kind in {"fid_v2_list", "fid_v1_list", "int64_list"}:
            values = getattr(named.feature, kind).value
            first = values[0] if values else 0
            return int(v1_to_v2(first)) if kind == "fid_v1_list" and values else int(first)
    return 0
