"""Converts the columns of a request, or serialized samples, to the inputs of a graph: pooled rows and tensors."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor

from monolith import _core
from monolith.data.protos.example_pb2 import FeatureConfig, FeatureConfigs, PoolingType
from monolith.data.records import SampleFormat
from monolith.errors import InvalidArgumentError
from monolith.export import POOLINGS, DenseSpec, FeatureSpec, PoolingName
from monolith.ids import SIGNATURE_BITS_V2
from monolith.serving.layout._columns import (
    given_number,
    id_column,
    num_examples_of,
    parsed_numbers,
    sample_column,
)
from monolith.serving.layout._device_pooling import DevicePooling, FeatureKeys
from monolith.serving.layout._outputs import cut_apart, num_places, outputs_of_configs, outputs_of_features, runs_of
from monolith.serving.request import Column, TypedColumns, for_all
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from monolith.serving.layout._columns import LooseColumn
    from monolith.tables import ServingRows


class LaidOut(NamedTuple):
    """The inputs of a model for one request."""

    inputs: dict[str, Tensor]
    """Pooled rows, float32, by the name of their feature or output; then columns of numbers by theirs."""
    num_examples: int
    num_ids: int
    """Number of ids looked up; ids shared by all examples count once."""
    num_found: int
    """Number of those ids that have a row; the others read zeros."""
    loose: dict[str, LooseColumn]
    """Further columns that are not tensors."""


SampleForm: TypeAlias = Literal["example_batch", "examples", "instances"]
"""Message type of encoded samples."""

_FORMS: dict[str, SampleFormat] = {
    "example_batch": SampleFormat.EXAMPLE_BATCH,
    "examples": SampleFormat.EXAMPLE,
    "instances": SampleFormat.INSTANCE,
}


class Layout:
    """Conversion of encoded samples to the inputs of a graph: parse, look up rows, pool.

    Thread-safe, also with concurrent writers of the stores: no row is ever torn. A call computes on its own thread and
    releases the GIL. An id without a row reads zeros, an example without ids is zeros.

    Args:
        features: Columns of ids, and the tables of their rows.
        stores: Name -> store of the rows; usually serving tables. If the core has them all, it lays out a request in
            one call; otherwise rows are looked up and pooled where they are.
        dense: Columns of numbers that become inputs unchanged.
        outputs: Its `out_configs` define which slices of the features become inputs; None: one input per feature.
        max_parsed_bytes: Maximum size of parsed samples: two kilobytes can encode millions of examples. 128 MiB by
            default.
        max_output_bytes: Maximum size of all inputs of one request; 1 GiB by default.

    Raises:
        InvalidArgumentError: the stores lack a feature, the features lack an output, or one of them is invalid.

    >>> from monolith.export.layout_spec import FeatureSpec
    >>> from monolith.tables import LocalStore, Segment, TableConfig
    >>> store = LocalStore({"item": TableConfig([Segment(2)])})
    >>> keys = {"id_layout": "any", "number": None, "wide_index": None}
    >>> item = FeatureSpec(name="item", store="rows", table="item", dims=(2,), pooling="sum", **keys)
    >>> laid_out = Layout([item], {"rows": store}).from_columns({"item": [[7, 8], [], [9]]})
    >>> laid_out.inputs["item"].shape, laid_out.num_ids, laid_out.num_found
    (torch.Size([3, 2]), 3, 0)
    """

    def __init__(
        self,
        features: Sequence[FeatureSpec],
        stores: Mapping[str, ServingRows],
        *,
        dense: Sequence[DenseSpec] = (),
        outputs: FeatureConfigs | None = None,
        max_parsed_bytes: int = 1 << 27,
        max_output_bytes: int = 1 << 30,
    ) -> None:
        self.features = tuple(features)
        self.dense = tuple(dense)
        self.outputs = tuple(
            outputs_of_features(self.features) if outputs is None else outputs_of_configs(self.features, outputs)
        )
        self.stores = dict(stores)
        self._sources = tuple(feature.source for feature in self.features)
        self._columns = tuple(dict.fromkeys(self._sources))
        self._numbers = [column for column in map(sample_column, self.dense) if column is not None]
        self._not_in_samples = self._refused_numbers()
        new_layout = partial(
            _core.InputLayout,
            numbers=[] if self._not_in_samples else [column.core_columns() for column in self._numbers],
            max_parsed_bytes=max_parsed_bytes,
            max_output_bytes=max_output_bytes,
        )
        self._core = new_layout(
            features=core_features(self.features, self.stores), outputs=[output.for_core() for output in self.outputs]
        )
        cores = [store.core for store in self.stores.values()]
        self._groups = tuple(core for core in cores if core is not None)
        self._rows: _core.InputLayout | DevicePooling = self._core
        """Looks up and pools."""
        if len(self._groups) < len(cores):
            self._rows = DevicePooling(
                (self._core, new_layout(features=[], outputs=[])),
                self.features,
                self.outputs,
                self.stores,
                max_output_bytes=max_output_bytes,
            )
        self._runs = runs_of(self.outputs)
        clash = sorted({output.name for output in self.outputs} & {spec.name for spec in self.dense})
        if clash:
            raise InvalidArgumentError(f"layout: {clash[0]!r} is an output of ids and a column of numbers")

    @classmethod
    def from_configs(
        cls, configs: FeatureConfigs, stores: Mapping[str, ServingRows], *, dense: Sequence[DenseSpec] = ()
    ) -> Self:
        """Creates the layout that a message describes. Tables are found by name; ids are used as keys unchanged.

        Raises:
            InvalidArgumentError: no store has a table of the name, or two have one.
        """
        return cls(features_of_configs(configs, stores), stores, dense=dense, outputs=configs)

    def from_bytes(self, data: bytes | Sequence[bytes], form: SampleForm, *, step: int = 0) -> LaidOut:
        """Converts encoded samples: one or more ``ExampleBatch``, or one ``Example`` or ``Instance`` per row.

        A column that a sample does not have is empty there. Ids of layout v1 become v2, as in training. A SHARED column
        is looked up and pooled once.

        Raises:
            InvalidArgumentError: the bytes are not such samples, or a column has another type or invalid ids.
            ResourceExhaustedError: the request is larger than the limits.
        """
        records = self._records(data, form)
        *counts, floats, numbers = self._rows.from_records(_FORMS[form].value, records, self._groups, step)
        values = {} if numbers is None else parsed_numbers(self._numbers, numbers)
        return self._laid_out(floats, counts, values)

    def from_columns(self, columns: Mapping[str, object], *, step: int = 0) -> LaidOut:
        """Converts columns of tensors, arrays or lists, by name; other columns are ignored.

        Columns of ids are int64 [B], int64 [B, k] or `Ragged`. A column of one row applies to all examples: it is
        looked up and pooled once.

        Raises:
            InvalidArgumentError: a column is missing or invalid; the message names it.
            ResourceExhaustedError: the inputs would be larger than the limit.
        """
        ids = self._ids(columns)
        numbers: Mapping[str, Column]
        if isinstance(columns, TypedColumns):
            numbers, num_examples = columns, columns.num_examples
        else:
            numbers = {spec.name: given_number(columns, spec) for spec in self.dense}
            num_examples = num_examples_of({**ids, **numbers})
        *counts, floats, _ = self._rows.from_columns(self._for_core(ids), num_examples, self._groups, step)
        return self._laid_out(
            floats, counts, {spec.name: for_all(numbers[spec.name], num_examples) for spec in self.dense}
        )

    def keys_of_bytes(self, data: bytes | Sequence[bytes], form: SampleForm) -> list[FeatureKeys]:
        """Returns the keys, buckets and row splits of each feature that `from_bytes` looks up."""
        return self._core.keys_of_records(_FORMS[form].value, self._records(data, form))

    def keys_of_columns(self, columns: Mapping[str, object]) -> list[FeatureKeys]:
        """Returns the keys, buckets and row splits of each feature that `from_columns` looks up."""
        ids = self._ids(columns)  # held until the core has read it
        return self._core.keys_of_columns(self._for_core(ids))

    def _ids(self, columns: Mapping[str, object]) -> dict[str, Tensor | Ragged]:
        """Returns the columns of ids; those of a `TypedColumns` have been checked."""
        if isinstance(columns, TypedColumns):
            return {name: _contiguous(columns[name]) for name in self._columns}
        return {name: _contiguous(id_column(columns, name)) for name in self._columns}

    def _for_core(self, ids: Mapping[str, Tensor | Ragged]) -> list[tuple[int, int, int, int, int]]:
        return [_core_column(ids[source]) for source in self._sources]

    def _records(self, data: bytes | Sequence[bytes], form: SampleForm) -> tuple[bytes, ...]:
        if form not in _FORMS:
            raise InvalidArgumentError(f"samples are one of {', '.join(_FORMS)}, got {form!r}")
        if self._not_in_samples:
            raise InvalidArgumentError(f"column {self._not_in_samples}, so it must be given as a tensor")
        records = (data,) if isinstance(data, bytes) else tuple(data)
        for record in records:
            if not isinstance(record, bytes):
                raise InvalidArgumentError(f"samples must be bytes, got {type(record).__name__}")
        return records

    def _laid_out(self, floats: NDArray[np.float32], counts: Sequence[int], numbers: Mapping[str, Column]) -> LaidOut:
        num_examples, num_ids, num_found = counts
        inputs = cut_apart(self._runs, torch.from_numpy(floats), num_examples)
        loose: dict[str, LooseColumn] = {}
        for name, value in numbers.items():
            if isinstance(value, Tensor):
                inputs[name] = value
            else:
                loose[name] = value
        return LaidOut(inputs, num_examples, num_ids, num_found, loose)

    def _refused_numbers(self) -> str:
        """Returns why samples cannot be parsed: a column is one of ids or cannot be in samples; empty if they can."""
        for spec in self.dense:
            if sample_column(spec) is None:
                return f"{spec.name!r} is {spec.dtype}, which samples do not hold"
            if spec.name in self._columns:
                return f"{spec.name!r} holds ids and numbers"
        return ""


def _contiguous(ids: Column) -> Tensor | Ragged:
    """Returns a column of ids in memory that the core can read."""
    values = ids.flat_values if isinstance(ids, Ragged) else ids
    if isinstance(ids, list) or not isinstance(values, Tensor) or values.dtype is not torch.int64 or not values.is_cpu:
        raise TypeError(f"ids must be int64 on the CPU, got {ids!r}")
    if isinstance(ids, Tensor):
        return ids.contiguous()
    if values.is_contiguous() and ids.row_splits.is_contiguous():
        return ids
    return Ragged(values.contiguous(), ids.row_splits.contiguous(), validate=False)


def _core_column(ids: Tensor | Ragged) -> tuple[int, int, int, int, int]:
    """Returns the address and the number of ids, ids of each row or -1, address of the splits, and number of rows.

    REQUIRES: the column is `_contiguous`, and the caller holds it.
    """
    if isinstance(ids, Ragged):
        values = ids.flat_values
        return values.data_ptr(), values.shape[0], -1, ids.row_splits.data_ptr(), ids.num_rows
    rows, count = ids.shape[0], ids.numel()
    return ids.data_ptr(), count, count // rows if rows else 0, 0, rows


_POOLING: dict[int, PoolingName] = {PoolingType.SUM: "sum", PoolingType.MEAN: "mean", PoolingType.FIRSTN: "firstn"}


def features_of_configs(configs: FeatureConfigs, stores: Mapping[str, ServingRows]) -> list[FeatureSpec]:
    """Returns the features in the order of their names; ids are used as keys unchanged."""
    return [_feature(name, configs.feature_configs[name], stores) for name in sorted(configs.feature_configs)]


def slice_name(name: str, features: Iterable[str]) -> str:
    """Returns the upstream name of the layout of one slice of features.

    >>> slice_name("bias", ["user", "item"])
    'bias_4a67a0256dacbca594916cce369e6d13'
    """
    joined = ",".join(sorted(features))
    return f"{name}_{hashlib.md5(joined.encode(), usedforsecurity=False).hexdigest()}"


def _feature(name: str, config: FeatureConfig, stores: Mapping[str, ServingRows]) -> FeatureSpec:
    having = [store for store, rows in stores.items() if config.table in rows.schema.names]
    if len(having) != 1:
        holders = f"stores {', '.join(having)} have" if having else "no store has"
        raise InvalidArgumentError(f"feature {name!r}: {holders} a table {config.table!r}, one is expected")
    if config.pooling_type not in _POOLING:
        raise InvalidArgumentError(f"feature {name!r}: pooling_type must be SUM, MEAN or FIRSTN")
    return FeatureSpec(
        name=name,
        store=having[0],
        table=config.table,
        dims=tuple(config.slice_dims),
        pooling=_POOLING[config.pooling_type],
        max_sequence_length=config.max_sequence_length,
        id_layout="any",
        number=None,
        wide_index=None,
    )


_ABOVE_SIGNATURE = (1 << 64) - (1 << SIGNATURE_BITS_V2)


def core_features(features: Sequence[FeatureSpec], stores: Mapping[str, ServingRows]) -> list[_core.InputFeature]:
    """Converts features, for groups in the order of the stores."""
    names = [feature.name for feature in features]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"layout: there are two features {name!r}")
    return [_core_feature(feature, stores) for feature in features]


def _core_feature(feature: FeatureSpec, stores: Mapping[str, ServingRows]) -> _core.InputFeature:
    subject = f"feature {feature.name!r}"
    if feature.store not in stores:
        raise InvalidArgumentError(f"{subject}: no store {feature.store!r}; there are {', '.join(stores) or 'none'}")
    schema = stores[feature.store].schema
    table = schema.number_of(feature.table)
    if schema.dims[table] != feature.dim:
        raise InvalidArgumentError(
            f"{subject}: slices of {list(feature.dims)} are {feature.dim} floats,"
            f" rows of table {feature.table!r} have {schema.dims[table]}"
        )
    if feature.pooling not in POOLINGS:
        raise InvalidArgumentError(f"{subject}: pooling must be one of {', '.join(POOLINGS)}, got {feature.pooling!r}")
    if feature.pooling == "firstn" and feature.max_sequence_length < 1:
        raise InvalidArgumentError(
            f"{subject}: firstn needs a max_sequence_length >= 1, got {feature.max_sequence_length}"
        )
    return _core.InputFeature(
        name=feature.name,
        column=feature.source,
        group=list(stores).index(feature.store),
        table=table,
        dim=feature.dim,
        pooling=POOLINGS.index(feature.pooling),
        places=num_places(feature),
        bits=key_bits(feature),
        padding=feature.padding_id,
    )


def key_bits(feature: FeatureSpec) -> tuple[int, int, int, int]:
    """Returns four masks: upper key bits taken from the id, set, and forbidden in the id, and the bits of wide keys."""
    slot_bits = (feature.number or 0) << SIGNATURE_BITS_V2
    carried = slot_bits if feature.id_layout == "v2" else 0
    forbidden = 0 if feature.number is None else _ABOVE_SIGNATURE
    wide = 0 if feature.wide_index is None else 1 << 63 | feature.wide_index << 54
    return carried, slot_bits, forbidden, wide
