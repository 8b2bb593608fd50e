"""Examples as plain values, and as lines to read."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from monolith import ids
from monolith.data.sources import are_texts, has_place

if TYPE_CHECKING:
    import pyarrow as pa

    from monolith.data.protos.example_pb2 import Example

_MOST_SHOWN = 8
_MOST_CHARACTERS = 200


def plain(example: Example) -> dict[str, Any]:
    """Returns the example as JSON has it: labels, weight, line id, and each feature as its kind and values."""
    values: dict[str, Any] = {"label": list(example.label)}
    if example.instance_weight:
        values["instance_weight"] = example.instance_weight
    if example.HasField("line_id"):
        values["line_id"] = {field.name: _json(value) for field, value in example.line_id.ListFields()}
    if example.data_source_key:
        values["data_source_key"] = example.data_source_key
    values["features"] = {
        feature.name: {kind: _feature_values(feature.feature, kind)}
        for feature in example.named_feature
        if (kind := feature.feature.WhichOneof("type")) is not None
    }
    return values


def lines(place: str, example: Example, *, is_row: bool = False) -> list[str]:
    """Returns the example as lines of ``name  value``, aligned, below the place that it comes from.

    A record without a label gets the line ``label  none``; a row of a table does not, since its columns are features.
    """
    values = plain(example)
    rows = []
    if values["label"] or not (is_row or "label" in values["features"]):  # a feature of that name is a label, too
        rows.append(("label", ", ".join(f"{label:g}" for label in values["label"]) or "none"))
    if "instance_weight" in values:
        rows.append(("weight", f"{values['instance_weight']:g}"))
    if "data_source_key" in values:
        rows.append(("data_source_key", str(values["data_source_key"])))
    rows += [(f"line_id.{name}", _short(value)) for name, value in values.get("line_id", {}).items()]
    rows += [
        (name, _feature_text(kind, content))
        for name, feature in values["features"].items()
        for kind, content in feature.items()
    ]
    width = max((len(name) for name, _ in rows), default=0)
    return [place, *(f"  {name:<{width}}  {value}" for name, value in rows)]


def bytes_line(place: str, record: bytes, *, as_json: bool) -> str:
    """Returns a record of bytes: as text where it is one, such as JSON, and otherwise by its length."""
    text = record.decode("utf-8", "replace")
    is_text = text.replace("\n", " ").replace("\t", " ").isprintable() and "\ufffd" not in text
    if as_json:
        return json.dumps({"place": place, "bytes": len(record), **({"text": text} if is_text else {})})
    shown = f": {text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + '...'}" if is_text else ""
    return f"{place}  {len(record)} bytes{shown}"


def schema_lines(name: str, schema: pa.Schema) -> list[str]:
    """Returns the columns of a table, with their types and those in a batch, below the name of their file."""
    rows = [("column", "type", "in a batch")]
    rows += [(field.name, str(field.type), _in_a_batch(field.type)) for field in schema]
    widths = [max(len(row[place]) for row in rows) for place in range(2)]
    return [name, *(f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}" for row in rows)]


def _in_a_batch(kind: pa.DataType) -> str:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    if not has_place(kind):
        return "skipped: it has no place in a batch"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _in_a_batch(kind.value_type)
        return f"lists of {'ids, by a hash of the text' if inner == 'bytes' else inner}"
    if are_texts(kind) or pa.types.is_null(kind):
        return "ids, by a hash of the text"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "bytes"
    if pa.types.is_fixed_size_list(kind):
        return f"{kind.list_size} numbers"
    return "float32" if pa.types.is_floating(kind) or pa.types.is_decimal(kind) else "int64"


def _feature_values(feature: Any, kind: str) -> Any:
    content = getattr(feature, kind)
    if kind.endswith("_lists"):
        return [[_json(value) for value in part.value] for part in content.list]
    if kind.endswith("_list"):
        return [_json(value) for value in content.value]
    return _json(content)


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return value if isinstance(value, bool | int | float | str) else [_json(item) for item in value]


def _feature_text(kind: str, content: Any) -> str:
    if kind in {"fid_v1_list", "fid_v2_list"}:
        version = 1 if kind == "fid_v1_list" else 2
        shown = _short([_id_text(number, version) for number in content])
        return f"{len(content)} v{version} id{'' if len(content) == 1 else 's'}: {shown}".rstrip(" :")
    name = kind.removesuffix("s").removesuffix("_list").removesuffix("_value")
    many = f"{len(content)} " if isinstance(content, list) else ""
    return f"{many}{name}: {_short(content)}"


def _id_text(value: int, version: int) -> str:
    bits = ids.SIGNATURE_BITS_V1 if version == 1 else ids.SIGNATURE_BITS_V2
    return f"{value >> bits}/{value & ((1 << bits) - 1)}"


def _short(value: Any) -> str:
    if not isinstance(value, list):
        return f"{value:g}" if isinstance(value, float) else str(value)
    shown = ", ".join(_short(item) for item in value[:_MOST_SHOWN])
    return f"{shown}, ..." if len(value) > _MOST_SHOWN else shown


def report_lines(report: dict[str, Any]) -> list[str]:
    """Returns statistics as lines for a person."""
    out = [f"samples  {report['samples']:,}"]
    for task, label in enumerate(report["labels"]):
        rate = "no label" if label["positive_rate"] is None else f"{100 * label['positive_rate']:.2f} % above 0"
        out.append(f"label {task}  {rate}, {label['samples']:,} samples, {label['missing']:,} without")
    if report["req_time"]:
        out.append(f"req_time  {report['req_time']['first']} to {report['req_time']['last']}")
    table = report["table"]
    rows = [("feature", "kind", "samples", "per sample", "longest", "unique", "slots", "table")]
    for name, feature in report["features"].items():
        unique = (
            f"{'' if feature.get('unique_is_exact', True) else '~'}{feature['unique']:,}" if "unique" in feature else ""
        )
        slots = ", ".join(feature.get("slots", {})) + (
            ", ..." if feature.get("num_slots", 0) > len(feature.get("slots", {})) else ""
        )
        size = _size(feature["table_bytes"]) if "table_bytes" in feature else ""
        rows.append(
            (
                *(name, feature["kind"], f"{feature['samples_with']:,}", f"{feature['values_per_sample']:g}"),
                *(f"{feature['longest']:,}", unique, slots, size),
            )
        )
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    out.append("")
    out += ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    out.append("")
    out.append(
        f"a table of dim {table['dim']} with {table['optimizer']}: {table['ids']:,} ids x"
        f" {table['bytes_per_id']:g} bytes = {_size(table['bytes'])}"
    )
    if report["late_features"]:
        out.append(f"came up late, counted from there on: {', '.join(report['late_features'])}")
    if report["uncounted_features"]:
        out.append(f"of a kind that is not counted: {', '.join(report['uncounted_features'])}")
    return out


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 999.5:  # from here on three digits round to the next unit
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"
