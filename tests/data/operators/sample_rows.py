"""Batches and the same samples as plain dictionaries, so that an operator can be compared with a loop over samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st

from monolith.data import INVALID_LABEL, Batch
from monolith.tensors import Ragged

Row = dict[str, Any]

few = settings(max_examples=30)
"""Samples are many-sided enough, and there are many operators."""

INT64 = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([-(1 << 63), (1 << 63) - 1, -1, 0]))
SMALL = st.integers(0, 6)
LABELS = st.sampled_from([INVALID_LABEL, 0.0, 1.0, -1.0, 0.5, 2.0, float("nan")])


def batch_of(rows: Sequence[Row], *, widths: int = 1) -> Batch:
    """A batch of these samples; an empty one has all the columns too."""
    return Batch(
        {
            "user": Ragged.from_lists([row["user"] for row in rows]),
            "item": Ragged.from_lists([row["item"] for row in rows]),
            "actions": Ragged.from_lists([row["actions"] for row in rows]),
            "label": torch.tensor([row["label"] for row in rows], dtype=torch.float32).view(-1, widths),
            "uid": torch.tensor([row["uid"] for row in rows], dtype=torch.int64),
            "item_id": torch.tensor([row["item_id"] for row in rows], dtype=torch.int64),
            "req_time": torch.tensor([row["req_time"] for row in rows], dtype=torch.int64),
            "city": [row["city"] for row in rows],
        },
        num_rows=len(rows),
    )


def rows_of(batch: Batch | None) -> list[Row]:
    """The samples of a batch; numbers that equal themselves, so NaN is None."""
    if batch is None:
        return []
    columns: dict[str, list[Any]] = {}
    for name, values in batch.items():
        if isinstance(values, list):
            columns[name] = values
        else:
            columns[name] = values.to_lists() if isinstance(values, Ragged) else values.tolist()
    return [{name: without_nan(column[row]) for name, column in columns.items()} for row in range(batch.num_rows)]


def without_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [without_nan(each) for each in value]
    return None if value != value else value  # noqa: PLR0124 - NaN is what differs from itself


def rows(*, widths: int = 1, max_size: int = 8) -> st.SearchStrategy[list[Row]]:
    """Samples, none of them included."""
    return st.lists(
        st.fixed_dictionaries(
            {
                "user": st.lists(st.one_of(SMALL, INT64), max_size=3),
                "item": st.lists(SMALL, max_size=3),
                "actions": st.lists(SMALL, max_size=4),
                "label": st.lists(LABELS, min_size=widths, max_size=widths),
                "uid": st.one_of(SMALL, INT64),
                "item_id": SMALL,
                "req_time": INT64,
                "city": st.sampled_from([b"", b"Rome", b"Roma", b"Oslo", b"\0", b"Rome\0"]),
            }
        ),
        max_size=max_size,
    )
