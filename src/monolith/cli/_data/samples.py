"""Messages of every format: which one some bytes are, and all of them as `Example`, which the commands work on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from monolith.data.conversions import FeaturePruning, example_of_instance, examples_of_batch, with_typed_fields
from monolith.data.protos.example_pb2 import Example, ExampleBatch
from monolith.data.protos.instance_pb2 import Instance
from monolith.data.protos.tf_example_pb2 import Example as TfExample
from monolith.data.records.sample_format import SampleFormat
from monolith.data.tf_conversions import example_of_lists
from monolith.errors import DataLossError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from google.protobuf.message import Message

_MESSAGES: dict[SampleFormat, type[Message]] = {
    SampleFormat.EXAMPLE: Example,
    SampleFormat.EXAMPLE_BATCH: ExampleBatch,
    SampleFormat.INSTANCE: Instance,
    SampleFormat.TF_EXAMPLE: TfExample,
}


def fits(payload: bytes, sample: SampleFormat) -> bool:
    """Returns whether these bytes are a message of only this format: no unknown field, no feature without a name."""
    if sample is SampleFormat.PLAINTEXT:
        return True
    try:
        message = _MESSAGES[sample].FromString(payload)
    except DecodeError:
        return False
    return bool(payload) and not len(UnknownFieldSet(message)) and _has_names(message, sample)


def _has_names(message: Any, sample: SampleFormat) -> bool:
    if sample is SampleFormat.EXAMPLE:
        return all(each.name and each.feature.WhichOneof("type") for each in message.named_feature)
    if sample is SampleFormat.EXAMPLE_BATCH:
        return bool(message.batch_size > 0) and all(each.name for each in message.named_feature_list)
    if sample is SampleFormat.TF_EXAMPLE:
        return bool(message.features.feature) and all(
            name and each.WhichOneof("kind") for name, each in message.features.feature.items()
        )
    return all(each.name for each in message.feature)


def examples_of(payload: bytes, sample: SampleFormat, *, ids: Collection[str] = ()) -> Iterator[Example]:
    """Yields the samples of a record as Examples, reserved features in their typed fields.

    Args:
        payload: The record.
        sample: What it holds.
        ids: Features of integers of a ``tf.train.Example`` that are v2 ids.

    Raises:
        DataLossError: it is no such message, or not one that an Example can be made of.
    """
    try:
        message: Any = _MESSAGES[sample].FromString(payload)
        if sample is SampleFormat.EXAMPLE:
            yield with_typed_fields(message)
        elif sample is SampleFormat.EXAMPLE_BATCH:
            yield from examples_of_batch(message, FeaturePruning.AS_IS)
        elif sample is SampleFormat.INSTANCE:
            yield example_of_instance(message)
        else:
            yield example_of_lists(message, ids=ids)
    except DecodeError as error:
        raise DataLossError(f"not a message of format {sample.name}: {error}") from error
