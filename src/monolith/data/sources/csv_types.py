"""Types of the columns of a CSV file: what Arrow infers, where it is right, and what is wanted of a column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.data.columns import DenseColumn, FirstBytes, Floats, Ids, Label, LineIdField, NestedIds, Weight
from monolith.data.sources.arrow_columns import ColumnType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from monolith.data.sources.wanted_columns import Wanted

__all__ = ["found_types", "looks_like_a_number", "type_to_read"]

_INT64_DIGITS = 19


def looks_like_a_number(cell: str) -> bool:
    """Returns whether a text is a number, as a name of a column hardly is."""
    try:
        float(cell)
    except ValueError:
        return False
    return cell.strip().lower() not in {"nan", "inf", "infinity"}


def found_types(read: Callable[..., pa.Table], head: bytes, names: Sequence[str]) -> dict[str, pa.DataType]:
    """Returns the type of each column by the lines of a head; texts where there is nothing to go by."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    if not head.strip():
        return dict.fromkeys(names, pa.string())
    table = read(head, None, [])
    found = {field.name: _found_type(field.type, pa) for field in table.schema}
    # Arrow parses integers above 2^63 as floats, which would merge ids.
    doubtful = [name for name, kind in found.items() if pa.types.is_floating(kind)]
    if doubtful:
        texts = read(head, dict.fromkeys(doubtful, pa.string()), [])
        for name in doubtful:
            if _are_large_numbers(texts.column(name)):
                found[name] = pa.uint64()
    return found


def _found_type(kind: pa.DataType, pa: Any) -> pa.DataType:
    # Bytes are strings of another encoding, which is reported on read; an empty column may have strings later.
    if pa.types.is_null(kind) or pa.types.is_binary(kind):
        return pa.string()
    return pa.float32() if pa.types.is_floating(kind) else kind  # as batches have them


def _are_large_numbers(texts: pa.ChunkedArray) -> bool:
    import pyarrow as pa  # noqa: PLC0415 - an extra
    import pyarrow.compute as pc  # noqa: PLC0415 - an extra

    present = texts.drop_null()
    if not len(present) or not pc.all(pc.match_substring_regex(present, r"^\d{1,20}$")).as_py():
        return False
    if pc.max(pc.utf8_length(present)).as_py() < _INT64_DIGITS:
        return False
    try:
        present.cast(pa.uint64())
    except pa.ArrowInvalid:
        return False
    return True


def type_to_read(wanted: Wanted, found: pa.DataType) -> pa.DataType:
    """Returns the type that a column is read as: the requested one, otherwise the inferred one."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    if wanted in {ColumnType.TEXT, ColumnType.BYTES} or isinstance(wanted, FirstBytes):
        return pa.string()
    if wanted is ColumnType.IDS or isinstance(wanted, Ids):
        is_one_number = pa.types.is_integer(found) and not (isinstance(wanted, Ids) and wanted.separator)
        return found if is_one_number else pa.string()
    as_found = wanted is ColumnType.ANY or isinstance(wanted, NestedIds | LineIdField)
    if as_found or pa.types.is_boolean(found) or pa.types.is_temporal(found) or found == pa.uint64():
        return found
    is_real = isinstance(wanted, Floats | Label | Weight) or (
        isinstance(wanted, DenseColumn) and wanted.dtype == "float32"
    )
    return pa.float32() if is_real or wanted is ColumnType.FLOAT else pa.int64()
