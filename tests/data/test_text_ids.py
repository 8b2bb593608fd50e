"""Ids of texts are the hash that their page states, and an independent implementation agrees."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import cityhash
import numpy as np
import pytest

from monolith import _core
from monolith.data import text_ids
from monolith.errors import InvalidArgumentError


def reference(column: str, text: bytes) -> int:
    unsigned: int = cityhash.CityHash64WithSeed(text, cityhash.CityHash64(column.encode()))
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


def test_the_page_has_the_ids_that_are_made(project_root: Path) -> None:
    page = (project_root / "docs" / "formats" / "text_ids.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `([^`]*)` \| (-?\d+) \|$", page, re.MULTILINE)
    assert len(rows) == 8
    for column, text, expected in rows:
        assert text_ids(column, [text]).tolist() == [int(expected)] == [reference(column, text.encode())]


@pytest.mark.parametrize("width", [np.int32, np.int64])
def test_texts_of_every_length_have_the_id_of_an_independent_hash(width: Any) -> None:
    draws = np.random.default_rng(1)
    texts = [draws.bytes(length) for length in range(300)]
    offsets = np.cumsum([0, *map(len, texts)]).astype(width)
    ids = _core.text_ids("user", np.frombuffer(b"".join(texts), np.uint8), offsets)
    assert ids.tolist() == [reference("user", text) for text in texts]


def test_many_threads_give_the_ids_of_one() -> None:
    texts = [f"text {number}" for number in range(100_000)]
    assert text_ids("a", texts).tolist() == [_core.text_id("a", text.encode()) for text in texts]


def test_offsets_that_leave_the_bytes_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="text 1 must lie in 3 bytes, got 2 to 4"):
        _core.text_ids("a", np.zeros(3, np.uint8), np.array([0, 2, 4], np.int32))


def test_what_is_no_list_of_texts_is_refused() -> None:
    with pytest.raises(TypeError, match="put it into a list"):
        text_ids("user", "ann")
    with pytest.raises(TypeError, match="expected texts, got a int: 3"):
        text_ids("user", [3])  # type: ignore[list-item]
    assert text_ids("user", []).shape == (0,)
