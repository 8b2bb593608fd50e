"""The head of a summary: a JSON text that describes the numbers of its tensor.

The bytes are part of the interface: TensorBoard passes them to the front end unchanged. Keys come in the order
``tag_type, segment_names, segment_sizes, group_index, label_size``, separated as `json.dumps` does by default.

>>> prepare_head(["user", "item"], [4, 8], out_type="bytes")[0]
b'{"tag_type": "gating", "segment_names": ["user", "item"], "segment_sizes": [4, 8], "group_index": [0, 1]}'
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from enum import StrEnum
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, overload

if TYPE_CHECKING:
    Sizes = Sequence[int] | Sequence[Sequence[int]]

PLUGIN_NAME = "monolith"
"""The TensorBoard plugin that summaries are addressed to."""
MONOLITH_NAS_DATA = f"{PLUGIN_NAME}_nas_weight"
"""Last part of the tag of architecture weights."""
MONOLITH_FI_DATA = f"{PLUGIN_NAME}_feature_insight"
"""Last part of the tag of feature insight."""
KTYPE, KMETA, KDATA = "tag_type", "meta", "data"
"""Keys of the data sent to the front end."""


class SummaryType(StrEnum):
    """What the numbers of a summary are; a text."""

    GATING = "gating"
    """One weight per segment: how wide the gate of the feature is open."""
    SELECTING = "selecting"
    """One weight per candidate size of each segment."""
    MIXED = "mixed"
    SIMPLE = "simple"
    FEATURE_INSIGHT_DIRECT = "fi_direct"
    """Per example and segment, the sum of squares of its part of the first layer."""
    FEATURE_INSIGHT_TRAIN = "fi_train"
    """Per example, the parts themselves, then the labels: input of a model that weighs the features."""


_GROUPED = frozenset({SummaryType.GATING, SummaryType.FEATURE_INSIGHT_TRAIN})
"""Types whose head has a group index."""


@overload
def prepare_head(
    segment_names: Sequence[str] | None,
    segment_sizes: Sizes | None,
    group_info: Sequence[Sequence[str]] | None = None,
    raw_tag: str | None = None,
    out_type: Literal["tensor", "bytes"] = "tensor",
) -> tuple[bytes, SummaryType | None]: ...


@overload
def prepare_head(
    segment_names: Sequence[str] | None,
    segment_sizes: Sizes | None,
    group_info: Sequence[Sequence[str]] | None = None,
    raw_tag: str | None = None,
    *,
    out_type: Literal["json"],
) -> tuple[dict[str, Any], SummaryType | None]: ...


def prepare_head(
    segment_names: Sequence[str] | None,
    segment_sizes: Sizes | None,
    group_info: Sequence[Sequence[str]] | None = None,
    raw_tag: str | None = None,
    out_type: str = "tensor",
) -> tuple[bytes | dict[str, Any], SummaryType | None]:
    """Returns the head of a summary about named segments, and the summary's type.

    Args:
        segment_names: Names of the features, in the order of the columns.
        segment_sizes: For each its number of columns, or its candidate numbers.
        group_info: Groups of names. A segment's group index is the rank of its group among the groups that occur;
            without groups every segment is its own.
        raw_tag: A `SummaryType`; by default gating if all sizes are numbers, else selecting.
        out_type: ``tensor`` and ``bytes`` give the text as bytes, ``json`` the dictionary that the text is made from.

    Returns:
        The head, empty if there are neither names nor sizes, and the type, then None unless given.
    """
    if out_type not in {"bytes", "tensor", "json"}:
        raise ValueError(f"prepare_head: out_type must be 'tensor', 'bytes' or 'json', got {out_type!r}")
    tagged = None if not raw_tag else _summary_type(raw_tag)
    names = list(segment_names or [])
    sizes = [_size(size) for size in (segment_sizes or [])]
    if not names and not sizes:
        return ({} if out_type == "json" else b""), tagged
    if len(names) != len(sizes):
        raise ValueError(f"prepare_head: every segment needs a size, got {len(names)} names and {len(sizes)} sizes")
    chosen = tagged or (SummaryType.GATING if all(isinstance(size, int) for size in sizes) else SummaryType.SELECTING)
    head: dict[str, Any] = {KTYPE: chosen.value, "segment_names": names, "segment_sizes": sizes}
    if chosen in _GROUPED:
        head["group_index"] = _group_index(names, group_info)
    return (head if out_type == "json" else encode_head(head)), chosen


def encode_head(head: dict[str, Any]) -> bytes:
    """Returns the bytes of a head."""
    return json.dumps(head).encode()


def _summary_type(raw_tag: str) -> SummaryType:
    try:
        return SummaryType(raw_tag)
    except ValueError as error:
        known = ", ".join(repr(kind.value) for kind in SummaryType)
        raise ValueError(f"prepare_head: raw_tag must be one of {known}, got {raw_tag!r}") from error


def _size(size: Any) -> int | list[int]:
    if _is_whole(size):
        return int(size)
    candidates = list(size) if isinstance(size, Iterable) and not isinstance(size, str | bytes) else []
    if not candidates or not all(_is_whole(candidate) for candidate in candidates):
        raise TypeError(f"prepare_head: a segment's size must be an integer or several of them, got {size!r}")
    return [int(candidate) for candidate in candidates]


def _is_whole(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral)


def _group_index(names: list[str], group_info: Sequence[Sequence[str]] | None) -> list[int]:
    if not group_info:
        return list(range(len(names)))
    groups: dict[str, int] = {}
    for number, group in enumerate(group_info):
        for name in group:
            if groups.setdefault(name, number) != number:
                raise ValueError(f"prepare_head: segment {name!r} must be in one group, got {list(group_info)!r}")
    missing = [name for name in names if name not in groups]
    if missing:
        raise ValueError(f"prepare_head: every segment must be in a group, missing are {missing}")
    ranks = {group: rank for rank, group in enumerate(sorted({groups[name] for name in names}))}
    return [ranks[groups[name]] for name in names]
