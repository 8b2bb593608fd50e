"""Parses serialized samples into a `Batch`, in the core: no Python runs per sample or feature.

The source key of a sample names the flow that it comes from. It is in the lagrangex header of a record, or in the
message itself. The header has priority, as in ByteDance Monolith, which copied it into the message; if it has none (0),
and without such a header, the message's own key is used. Upstream left memory uninitialized there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from monolith import _core
from monolith.data.batch import Batch, ColumnValues
from monolith.data.columns import (
    Column,
    DenseColumn,
    FirstBytes,
    Floats,
    Ids,
    Ints,
    Label,
    LineIdField,
    NestedIds,
    Weight,
)
from monolith.data.records.bad_records import BadRecords
from monolith.data.records.framing import SampleFormat
from monolith.data.records.records import Records
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

_KEY_FIELD = {SampleFormat.EXAMPLE: 103, SampleFormat.EXAMPLE_BATCH: 100, SampleFormat.INSTANCE: 100}
"""Number of the field that holds the key; tf.train.Example has none."""
_BATCH_SIZE_FIELD = 3
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def source_keys_of(records: Records | Sequence[bytes], sample: SampleFormat) -> npt.NDArray[np.int64]:
    """Returns the key of each record; 0 if neither header nor message has one.

    All records are scanned together, one outermost field of each after another.
    """
    if not isinstance(records, Records):
        records = Records.from_list(records)
    is_bare = records.has_source_keys is False
    header = np.zeros(len(records), np.int64) if is_bare else records.source_keys().astype(np.int64)
    if sample not in _KEY_FIELD or (len(header) and header.all()):
        return header
    own = _last_numbers(records, _KEY_FIELD[sample]).astype(np.int64) & 0xFFFFFFFF
    return np.where(header != 0, header, own)


def batch_sizes_of(records: Records | Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Returns the declared number of rows of each ExampleBatch."""
    records = records if isinstance(records, Records) else Records.from_list(records)
    return _last_numbers(records, _BATCH_SIZE_FIELD).astype(np.int64)


def with_source_key(record: bytes, sample: SampleFormat, key: int) -> bytes:
    """Returns the message with this key in it; of a scalar that stands twice in a message, the last one counts.

    >>> with_source_key(b"", SampleFormat.INSTANCE, 256).hex()
    'a0068002'
    """
    if not key or sample not in _KEY_FIELD:
        return record
    return record + _varint_bytes(_KEY_FIELD[sample] << 3 | _VARINT) + _varint_bytes(key)


def _varint_bytes(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _last_numbers(records: Records, field: int) -> npt.NDArray[np.uint64]:
    """Returns the last number of the field in each message; 0 if missing, or if the message is malformed."""
    last_numbers = np.zeros(len(records), np.uint64)
    at, end = records.spans[::2].copy(), records.spans[::2] + records.spans[1::2]
    left = np.flatnonzero(at < end)
    while len(left):
        tags, at[left] = _varints(records.buffer, at[left], end[left])
        wires = (tags & np.uint64(7)).astype(np.int64)
        numbers, behind = _varints(records.buffer, at[left], end[left])
        is_field = tags == np.uint64(field << 3 | _VARINT)
        last_numbers[left[is_field]] = numbers[is_field]
        sizes = np.minimum(numbers, np.uint64(1 << 40)).astype(np.int64)
        steps = {_VARINT: behind, _BYTES: behind + sizes, _FIXED32: at[left] + 4, _FIXED64: at[left] + 8}
        # Other wire types are no longer written by anyone: such a message ends here.
        at[left] = np.select([wires == wire for wire in steps], list(steps.values()), end[left])
        left = left[at[left] < end[left]]
    return last_numbers


def _varints(
    buffer: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Returns a number from each position, and the position after it; the end if it is truncated or too long."""
    numbers = np.zeros(len(at), np.uint64)
    behind = end.copy()
    goes_on = np.ones(len(at), bool)
    for place in range(10):
        is_inside = goes_on & (at + place < end)
        if not is_inside.any():
            break
        bytes_here = buffer[np.minimum(at + place, len(buffer) - 1)]
        part = (bytes_here & 0x7F).astype(np.uint64) << np.uint64(min(7 * place, 63))
        numbers = np.where(is_inside, numbers | part, numbers)
        is_last = is_inside & (bytes_here < 0x80)
        behind = np.where(is_last, at + place + 1, behind)
        goes_on = is_inside & ~is_last
    return numbers, behind


_LINE_ID_FORMS = ("int", "float", "ints", "text")

MAX_PARSED_BYTES = 1 << 27
"""Default limit of the bytes of one ``ExampleBatch`` in a batch."""


class Parser:
    """Parses samples of one format into batches of the same columns. Thread-safe, and runs on all threads of the core.

    Of an ``ExampleBatch`` all rows go to the batch, those of several records one after another; a SHARED column is
    repeated in every row. Features without a column are skipped, not decoded.

    >>> from monolith.data.protos.example_pb2 import Example
    >>> example = Example(label=[1.0])
    >>> example.named_feature.add(name="user").feature.fid_v2_list.value.append(7)
    >>> Parser("example", [Ids("user"), Label()]).parse([example.SerializeToString()])["user"]
    Ragged([[7]], dtype=torch.int64)

    Args:
        sample: What the records hold.
        columns: Columns of the batch.
        bad: Counts records that are not such samples, or whose features have another type than their column, and limits
            how many may be skipped.
        max_parsed_bytes: Limit of the bytes of one ``ExampleBatch`` in a batch, where a shared list is repeated in
            every row: 2 kB that claim 2^20 rows would be gigabytes. A record above the limit is bad. Default: 128 MiB;
            valid records need a few MiB.
        source_key: Name of one more column, int64 [rows]: the data source of each sample, from the lagrangex header
            before its record, or else from the field `data_source_key` of the message; 0 if there is none.

    Raises:
        ValueError: a duplicate name, an unknown field of LineId, or a limit below 1.
    """

    def __init__(
        self,
        sample: SampleFormat | str,
        columns: Sequence[Column],
        *,
        bad: BadRecords | None = None,
        max_parsed_bytes: int = MAX_PARSED_BYTES,
        source_key: str | None = None,
    ) -> None:
        self.sample = SampleFormat.of(sample)
        if self.sample is SampleFormat.PLAINTEXT:
            raise ValueError("PLAINTEXT records are bytes; there is nothing to parse")
        self.columns = tuple(columns)
        _refuse_texts(self.columns)
        self.source_key = source_key
        if source_key is not None and source_key in {column.name for column in self.columns}:
            raise ValueError(f"source_key: there is a column {source_key!r} already")
        if max_parsed_bytes < 1:
            raise ValueError(f"max_parsed_bytes must be >= 1, got {max_parsed_bytes}")
        self.max_parsed_bytes = max_parsed_bytes
        self.bad = BadRecords() if bad is None else bad
        self._prepare()

    def _prepare(self) -> None:
        number = 4 if self.sample is SampleFormat.TF_EXAMPLE else self.sample.value
        self._schema = _core.SampleSchema(number, [column.core_columns() for column in self.columns])
        line_id_forms = {name: _LINE_ID_FORMS[form] for name, form in _core.line_id_fields()}
        self._forms = [_form_of(column, line_id_forms) for column in self.columns]

    def __getstate__(self) -> dict[str, Any]:
        """Returns what travels to another process: what the parser was made of."""
        return {name: value for name, value in self.__dict__.items() if name not in {"_schema", "_forms"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    def parse(self, records: Records | Sequence[bytes]) -> Batch:
        """Returns the batch of these records, in order.

        Raises:
            DataLossError: more records are bad than may be skipped; names the first of them.
            ResourceExhaustedError: the batch would be too large for memory.
        """
        limit = self.max_parsed_bytes
        if isinstance(records, Records):
            parsed = self._schema.parse_spans(records.buffer, records.spans, skip_bad=True, max_parsed_bytes=limit)
        else:
            parsed = self._schema.parse_list(list(records), skip_bad=True, max_parsed_bytes=limit)
        rows, *arrays, texts, bad_records, problems = parsed
        if len(bad_records):
            self._count_bad(records, bad_records.tolist(), problems)
        ragged_ints, int_splits, ragged_floats, float_splits, dense_floats, dense_ints = map(torch.from_numpy, arrays)
        pieces: dict[str, Iterator[ColumnValues]] = {
            "ints": _ragged(ragged_ints, int_splits, rows),
            "floats": _ragged(ragged_floats, float_splits, rows),
            "dense_floats": _dense(dense_floats, self._widths("dense_floats"), rows),
            "dense_ints": _dense(dense_ints, self._widths("dense_ints"), rows),
            "texts": iter(texts),
        }
        columns = {
            column.name: _assemble(column, pieces[form], form)
            for column, form in zip(self.columns, self._forms, strict=True)
        }
        if self.source_key is not None:
            columns[self.source_key] = self._source_keys(records, bad_records)
        return Batch(columns, num_rows=rows)

    def _source_keys(self, records: Records | Sequence[bytes], bad_records: npt.NDArray[np.int64]) -> Tensor:
        keys = source_keys_of(records, self.sample)
        rows = batch_sizes_of(records) if self.sample is SampleFormat.EXAMPLE_BATCH else np.ones(len(keys), np.int64)
        return torch.from_numpy(np.repeat(np.delete(keys, bad_records), np.delete(rows, bad_records)))

    def _widths(self, form: str) -> list[int]:
        columns = (column.core_columns() for column in self.columns)
        return [width for (_, _, width, _), own in zip(columns, self._forms, strict=True) if own == form]

    def _count_bad(self, records: Records | Sequence[bytes], bad: list[int], problems: list[str]) -> None:
        for index, problem in zip(bad, problems, strict=False):
            place = records.place_of(index) if isinstance(records, Records) else f"record {index}"
            self.bad.add(f"{place}: {problem}")
        if len(bad) > len(problems):
            self.bad.add(f"{len(bad) - len(problems)} more records of the same batch", len(bad) - len(problems))


def _form_of(column: Column, line_id_forms: dict[str, str]) -> str:
    """Returns which of the core's arrays a column lies in."""
    if isinstance(column, LineIdField):
        forms = {"int": "dense_ints", "float": "dense_floats", "ints": "ints", "text": "texts"}
        return forms[line_id_forms[column.name]]
    if isinstance(column, Ids | Ints | NestedIds):
        return "ints"
    if isinstance(column, DenseColumn):
        return "dense_floats" if column.dtype == "float32" else "dense_ints"
    return {Floats: "floats", FirstBytes: "texts", Label: "dense_floats", Weight: "dense_floats"}[type(column)]


def _ragged(values: Tensor, splits: Tensor, rows: int) -> Iterator[Ragged]:
    """Cuts arrays that lie end to end apart; two calls of torch for all of them."""
    table = splits.view(-1, rows + 1)
    parts = torch.split(values, table[:, -1].tolist())
    return (Ragged(part, part_splits, validate=False) for part, part_splits in zip(parts, table.unbind(), strict=True))


def _dense(values: Tensor, widths: list[int], rows: int) -> Iterator[Tensor]:
    parts = torch.split(values, [rows * width for width in widths])
    return (part.view(rows, width) for part, width in zip(parts, widths, strict=True))


def _assemble(column: Column, pieces: Iterator[ColumnValues], form: str) -> ColumnValues:
    piece = next(pieces)
    if isinstance(column, NestedIds):
        ids, lengths = cast("Ragged", piece), cast("Ragged", next(pieces))
        lists = Ragged.from_lengths(ids.values, lengths.flat_values, validate=False)
        return Ragged(lists, lengths.row_splits, validate=False)
    if isinstance(column, Ids) and column.length is not None and isinstance(piece, Ragged):
        return piece.to_padded(length=column.length)
    if isinstance(column, Weight) or (isinstance(column, LineIdField) and form.startswith("dense")):
        return cast("Tensor", piece).view(-1)
    return piece


def _refuse_texts(columns: Sequence[Column]) -> None:
    for column in columns:
        if isinstance(column, Ids) and (column.separator is not None or column.texts_of is not None):
            name = "separator" if column.separator is not None else "texts_of"
            raise ValueError(
                f"Parser: column {column.name!r}: {name} is for texts of CSV, JSON lines, Parquet and tables; "
                "the ids of samples are numbers already"
            )
