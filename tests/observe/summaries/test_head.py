from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.observe.summaries import (
    KDATA,
    KMETA,
    KTYPE,
    MONOLITH_FI_DATA,
    MONOLITH_NAS_DATA,
    PLUGIN_NAME,
    SummaryType,
    prepare_head,
)

NAMES = ["f1", "f2", "f3"]
GROUPS = [["f1", "f2"], ["f3", "f4"], ["f5", "f6"]]


def test_head_of_gating() -> None:
    head, kind = prepare_head(NAMES, [3, 5, 9], GROUPS)
    assert kind == SummaryType.GATING
    assert head == (
        b'{"tag_type": "gating", "segment_names": ["f1", "f2", "f3"], "segment_sizes": [3, 5, 9], '
        b'"group_index": [0, 0, 1]}'
    )


def test_head_of_selecting() -> None:
    head, kind = prepare_head(NAMES, [[3, 6], [5, 10], [4, 8, 16]])
    assert kind == SummaryType.SELECTING
    assert head == (
        b'{"tag_type": "selecting", "segment_names": ["f1", "f2", "f3"], '
        b'"segment_sizes": [[3, 6], [5, 10], [4, 8, 16]]}'
    )


def test_constants_match_the_front_end() -> None:
    assert (PLUGIN_NAME, MONOLITH_NAS_DATA, MONOLITH_FI_DATA) == (
        "monolith",
        "monolith_nas_weight",
        "monolith_feature_insight",
    )
    assert (KTYPE, KMETA, KDATA) == ("tag_type", "meta", "data")
    assert list(SummaryType) == ["gating", "selecting", "mixed", "simple", "fi_direct", "fi_train"]


def test_tensor_and_bytes_are_the_same_text_and_json_what_it_is_made_from() -> None:
    text = prepare_head(NAMES, [3, 5, 9], GROUPS, out_type="tensor")
    assert prepare_head(NAMES, [3, 5, 9], GROUPS, out_type="bytes") == text
    head, _ = prepare_head(NAMES, [3, 5, 9], GROUPS, out_type="json")
    assert list(head) == ["tag_type", "segment_names", "segment_sizes", "group_index"]
    assert json.dumps(head).encode() == text[0]


def test_the_dictionary_is_not_the_callers() -> None:
    names, sizes = ["a"], [[1, 2]]
    head, _ = prepare_head(names, sizes, out_type="json")
    head["segment_names"].append("b")
    head["segment_sizes"][0].append(3)
    assert (names, sizes) == (["a"], [[1, 2]])


@pytest.mark.parametrize("empty", [None, [], ()])
def test_without_segments_the_head_is_empty(empty: Any) -> None:
    assert prepare_head(empty, empty) == (b"", None)
    assert prepare_head(empty, empty, out_type="bytes") == (b"", None)
    assert prepare_head(empty, empty, out_type="json") == ({}, None)
    assert prepare_head(empty, empty, raw_tag="simple") == (b"", SummaryType.SIMPLE)


@pytest.mark.parametrize("raw_tag", list(SummaryType))
def test_only_gating_and_training_insight_have_groups(raw_tag: str) -> None:
    head, kind = prepare_head(["a", "b"], [1, 1], raw_tag=raw_tag, out_type="json")
    assert kind == raw_tag
    assert head["tag_type"] == raw_tag
    assert ("group_index" in head) == (raw_tag in {"gating", "fi_train"})


def test_a_mixture_of_numbers_and_candidates_is_selecting() -> None:
    sizes: Any = [4, [4, 8]]
    assert prepare_head(["a", "b"], sizes)[1] == SummaryType.SELECTING


def test_numbers_of_numpy_are_numbers() -> None:
    head, kind = prepare_head(["a", "b"], list(np.array([4, 8])), out_type="json")
    assert kind == SummaryType.GATING
    assert json.loads(json.dumps(head))["segment_sizes"] == [4, 8]


def test_names_outside_ascii_are_escaped() -> None:
    assert b'["\\u7528\\u6237"]' in prepare_head(["用户"], [1])[0]


@given(st.data())
def test_a_group_index_is_the_rank_among_groups_that_occur(data: st.DataObject) -> None:
    groups = data.draw(st.lists(st.lists(st.integers(0, 40), unique=True), min_size=1, max_size=8))
    seen: set[int] = set()
    named = []
    for group in groups:
        named.append([f"f{number}" for number in group if number not in seen])
        seen.update(group)
    pool = sorted(name for group in named for name in group)
    if not pool:
        return
    names = data.draw(st.lists(st.sampled_from(pool), min_size=1, unique=True))
    head, _ = prepare_head(names, [1] * len(names), named, out_type="json")
    for name, index in zip(names, head["group_index"], strict=True):
        mine = next(number for number, group in enumerate(named) if name in group)
        used_before = [group for group in named[:mine] if set(group) & set(names)]
        assert index == len(used_before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a"], [1, 2]), "got 1 names and 2 sizes"),
        ((["a"], None), "got 1 names and 0 sizes"),
        ((["a"], [1], [["b"]]), r"missing are \['a'\]"),
        ((["a"], [1], [["a"], ["a"]]), "segment 'a' must be in one group"),
        ((["a"], [1], None, "gatin"), "raw_tag must be one of 'gating', .*, got 'gatin'"),
        ((["a"], [1], None, None, "text"), "out_type must be 'tensor', 'bytes' or 'json', got 'text'"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare_head(*arguments)


@pytest.mark.parametrize("size", [1.5, "4", True, None, [1, "2"], [[1]], []])
def test_a_size_is_one_integer_or_several(size: Any) -> None:
    with pytest.raises(TypeError, match="size must be an integer or several"):
        prepare_head(["a"], [size])
