"""``tf.train.Example`` as Example and back: lists keep their names. Also random ones for factorisation machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from monolith.data.conversions import add_feature, signed, with_typed_fields
from monolith.data.protos.example_pb2 import Example
from monolith.data.protos.line_id_pb2 import LineId
from monolith.data.protos.tf_example_pb2 import Example as TfExample
from monolith.ids import v1_to_v2

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


LINE_ID_COLUMNS = {f"__{field.name.upper()}__": field for field in LineId.DESCRIPTOR.fields}
"""Names under which the fields of a line id stand where all is columns, as in Parquet."""
SOURCE_KEY_COLUMN = "__DATA_SOURCE_KEY__"
_LABEL, _WEIGHT = "label", "instance_weight"
_RESERVED = frozenset({_LABEL, _WEIGHT, SOURCE_KEY_COLUMN, *LINE_ID_COLUMNS})
_LISTS = ("float_list", "int64_list", "bytes_list")


def tf_example_of_example(example: Example, *, drop_what_does_not_fit: bool = False) -> TfExample:
    """Converts an Example to a ``tf.train.Example``: lists under their names, ids as the int64 of their v2 form.

    Labels are the feature ``label``, the weight ``instance_weight``, fields of the line id ``__<FIELD>__``, the data
    source ``__DATA_SOURCE_KEY__``. `example_of_lists` reads it back; a parser, too, by ``Ids(name, slot=...)``.

    Args:
        example: The sample.
        drop_what_does_not_fit: Drops doubles, single values, nested lists and raw features, which cannot be
            represented.

    Raises:
        ValueError: there are such features, and they may not be dropped; or a name is duplicated.
    """
    example = with_typed_fields(example)
    sample = TfExample()
    lists = sample.features.feature
    _put_typed_fields(example, sample)
    lost = [raw.name for raw in example.named_raw_feature]
    for named in example.named_feature:
        kind = named.feature.WhichOneof("type")
        if named.name in lists or named.name in _RESERVED:
            why = "is the name of a typed field there" if named.name in _RESERVED else "occurs twice in one Example"
            raise ValueError(f"a tf.train.Example has one list for each name: feature {named.name!r} {why}")
        if kind in {"fid_v1_list", "fid_v2_list"}:
            numbers = getattr(named.feature, kind).value
            ids = map(v1_to_v2, numbers) if kind == "fid_v1_list" else map(signed, numbers)
            lists[named.name].int64_list.value[:] = list(ids)
            lists[named.name].int64_list.SetInParent()
        elif kind in _LISTS:
            getattr(lists[named.name], kind).value[:] = getattr(named.feature, kind).value
            getattr(lists[named.name], kind).SetInParent()
        elif kind is not None:
            lost.append(named.name)
    if lost and not drop_what_does_not_fit:
        raise ValueError(
            "a tf.train.Example has no place for doubles, single values, nested lists and raw features, "
            f"such as {', '.join(lost[:5])}"
        )
    return sample


def example_of_lists(sample: TfExample, *, ids: Collection[str] = ()) -> Example:
    """Converts a ``tf.train.Example`` to an Example whose features are its lists, by their names.

    Typed fields that `tf_example_of_example` wrote become typed fields again.

    Args:
        sample: The sample.
        ids: Features of integers that are v2 ids; the others are integers.

    Raises:
        ValueError: a feature declared as ids holds something else, or a typed field the wrong kind of list.
    """
    example = Example()
    for name in sorted(sample.features.feature):
        feature = sample.features.feature[name]
        kind = feature.WhichOneof("kind")
        if kind is None:
            continue
        if name in _RESERVED and _take_typed_field(name, feature, kind, example):
            continue
        if name not in ids:
            copy = getattr(add_feature(example, name), kind)
            copy.value.extend(getattr(feature, kind).value)
            copy.SetInParent()
            continue
        if kind != "int64_list":
            raise ValueError(f"feature {name!r} cannot be ids: it is a {kind}")
        target = add_feature(example, name).fid_v2_list
        target.value.extend(number % (1 << 64) for number in feature.int64_list.value)
        target.SetInParent()
    return example


def _put_typed_fields(example: Example, sample: TfExample) -> None:
    lists = sample.features.feature
    if example.label:
        lists[_LABEL].float_list.value.extend(example.label)
    if example.instance_weight:
        lists[_WEIGHT].float_list.value.append(example.instance_weight)
    if example.data_source_key:
        lists[SOURCE_KEY_COLUMN].int64_list.value.append(example.data_source_key)
    for name, field in LINE_ID_COLUMNS.items():
        value: Any = getattr(example.line_id, field.name)
        if not (len(value) if field.is_repeated else example.line_id.HasField(field.name)):
            continue
        values = value if field.is_repeated else [value]
        if field.cpp_type == field.CPPTYPE_STRING:
            lists[name].bytes_list.value.extend(value.encode() for value in values)
        elif field.cpp_type == field.CPPTYPE_FLOAT:
            lists[name].float_list.value.extend(values)
        else:
            lists[name].int64_list.value.extend(signed(int(value)) for value in values)


def _take_typed_field(name: str, feature: Any, kind: str, example: Example) -> bool:
    """Returns whether the list is of the kind that the field is written as, and was put there."""
    values = getattr(feature, kind).value
    if name == _LABEL:
        example.label.extend([] if kind == "bytes_list" else values)
        return kind != "bytes_list"
    if len(values) != 1 and not (name in LINE_ID_COLUMNS and LINE_ID_COLUMNS[name].is_repeated):
        return False
    if name == _WEIGHT and kind == "float_list":
        example.instance_weight = values[0]
    elif name == SOURCE_KEY_COLUMN and kind == "int64_list" and 0 <= values[0] < 1 << 32:
        example.data_source_key = values[0]
    elif name in LINE_ID_COLUMNS:
        return _take_line_id_field(name, values, kind, example)
    else:
        return False
    return True


def _take_line_id_field(name: str, values: Sequence[Any], kind: str, example: Example) -> bool:
    field = LINE_ID_COLUMNS[name]
    expected = {field.CPPTYPE_STRING: "bytes_list", field.CPPTYPE_FLOAT: "float_list"}
    if kind != expected.get(field.cpp_type, "int64_list"):
        return False
    value: Any = list(values) if field.is_repeated else values[0]
    try:
        if kind == "bytes_list":
            value = value.decode()
        elif field.type == field.TYPE_FIXED64:
            value %= 1 << 64
        elif field.cpp_type == field.CPPTYPE_BOOL:
            value = bool(value)
        example.line_id.MergeFrom(LineId(**{field.name: value}))
    except ValueError:  # no UTF-8, or out of range: then it is someone else's feature of that name
        return False
    return True


def slot_to_key(slot: int) -> str:
    """Returns the name of the feature of a slot.

    >>> slot_to_key(3)
    'feature_3'
    """
    return f"feature_{slot}"


def generate_ffm_example(
    vocab_sizes: Sequence[int], length: int = 5, *, seed: int | np.random.Generator | None = None
) -> bytes:
    """Returns a serialized ``tf.train.Example`` with a label of 0 or 1 and random ids in each slot.

    Slot i has 1 to `length` ids, drawn with repetition from ``[i * max_vocab, i * max_vocab + vocab_sizes[i])``, where
    max_vocab is the largest of the sizes: no id is in two slots.

    Args:
        vocab_sizes: Number of ids of each slot.
        length: The most ids of a slot.
        seed: A number, or a generator to draw many different examples from; None: another example at each call.

    >>> generate_ffm_example([10, 20], seed=3) == generate_ffm_example([10, 20], seed=3)
    True
    """
    if not vocab_sizes or min(vocab_sizes) < 1:
        raise ValueError(f"vocab_sizes must be numbers >= 1, got {list(vocab_sizes)}")
    if length < 1:
        raise ValueError(f"length must be >= 1, got {length}")
    random = np.random.default_rng(seed)
    example = TfExample()
    features = example.features.feature
    features["label"].int64_list.value.append(int(random.integers(2)))
    max_vocab = max(vocab_sizes)
    for slot, vocab_size in enumerate(vocab_sizes):
        num_ids = int(random.integers(1, length + 1))
        ids = random.integers(vocab_size, size=num_ids) + max_vocab * slot
        features[slot_to_key(slot)].int64_list.value.extend(ids.tolist())
    return example.SerializeToString(deterministic=True)
