"""Pipelines drawn at random, and what their elements are, as plain values that can be compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from monolith.data import Batch, Dataset, GeneratedDataset, InMemoryDataset, MergedDataset, Records
from monolith.tensors import Ragged


def plain(element: Any) -> Any:
    """An element as lists and numbers."""
    if isinstance(element, Batch):
        return {name: plain(values) for name, values in element.items()}
    if isinstance(element, Ragged):
        return element.to_lists()
    if isinstance(element, torch.Tensor):
        return element.tolist()
    if isinstance(element, Records):
        return list(element)
    if isinstance(element, list | tuple):
        return [plain(part) for part in element]
    return element


def read_all(dataset: Dataset[Any], position: bytes | None = None) -> list[Any]:
    with dataset.read(position) as reading:
        return [plain(element) for element in reading]


def batch_of(first: int, rows: int) -> Batch:
    """Rows whose values say which row they are, in a column of each kind."""
    numbers = range(first, first + rows)
    ids = Ragged.from_lists([[number] * (number % 3) for number in numbers])
    text = [str(number).encode() for number in numbers]
    return Batch({"number": torch.arange(first, first + rows), "ids": ids, "text": text}, num_rows=rows)


def batches(sizes: Sequence[int]) -> Dataset[Any]:
    ends = np.cumsum([0, *sizes]).tolist()
    return InMemoryDataset(batch_of(first, rows) for first, rows in zip(ends, sizes, strict=False))


def records(sizes: Sequence[int]) -> InMemoryDataset[Records]:
    ends = np.cumsum([0, *sizes]).tolist()
    return InMemoryDataset(
        Records.from_list([b"record %d" % number for number in range(first, first + rows)])
        for first, rows in zip(ends, sizes, strict=False)
    )


def _is_kept(element: Any) -> Any:
    if isinstance(element, Batch):
        number = element["number"]
        assert isinstance(number, torch.Tensor)
        return number % 4 != 1
    if isinstance(element, Records):
        return np.array([len(record) % 2 == 0 for record in element], dtype=bool)
    return len(str(element)) % 5 != 0 if not isinstance(element, int) else element % 4 != 1


Step = Callable[[Dataset[Any]], Dataset[Any]]

STEPS: st.SearchStrategy[tuple[str, Step]] = st.one_of(
    st.builds(lambda n: (f"batch({n})", lambda data: data.batch(n)), st.integers(1, 9)),
    st.builds(lambda n: (f"batch({n}, drop)", lambda data: data.batch(n, drop_remainder=True)), st.integers(1, 9)),
    st.builds(
        lambda n, s: (f"shuffle({n}, {s})", lambda data: data.shuffle(n, seed=s)), st.integers(1, 20), st.integers(0, 3)
    ),
    st.builds(lambda n: (f"take({n})", lambda data: data.take(n)), st.integers(0, 20)),
    st.builds(lambda n: (f"skip({n})", lambda data: data.skip(n)), st.integers(0, 9)),
    st.builds(lambda n: (f"repeat({n})", lambda data: data.repeat(n)), st.integers(0, 3)),
    st.just(("repeat().take(40)", lambda data: data.repeat().take(40))),
    st.just(("cache()", lambda data: data.cache())),
    st.builds(lambda n: (f"prefetch({n})", lambda data: data.prefetch(n)), st.integers(0, 3)),
    st.just(("map", lambda data: data.map(lambda element: element))),
    st.builds(
        lambda part, seed: (f"split({part})", lambda data: data.split([0.6, 0.4], seed=seed)[part]),
        st.integers(0, 1),
        st.integers(0, 3),
    ),
    st.builds(
        lambda ratio, stop: (
            f"merge({ratio}, {stop})",
            lambda data: MergedDataset([data, data.skip(1)], [ratio, 1], stop_at_first_end=stop),
        ),
        st.sampled_from([0.3, 1, 2.5]),
        st.booleans(),
    ),
)
FILTER: tuple[str, Step] = ("filter", lambda data: data.filter(_is_kept))
MARK: tuple[str, Step] = ("mark_last", lambda data: data.mark_last())

SOURCES: st.SearchStrategy[tuple[str, Callable[[], Dataset[Any]]]] = st.one_of(
    st.builds(lambda n: (f"memory({n})", lambda: InMemoryDataset(range(n))), st.integers(0, 30)),
    st.builds(lambda n: (f"generated({n})", lambda: GeneratedDataset(lambda i: i, n)), st.integers(0, 30)),
    st.builds(lambda s: (f"batches({s})", lambda: batches(s)), st.lists(st.integers(0, 7), max_size=6)),
    st.builds(lambda s: (f"records({s})", lambda: records(s)), st.lists(st.integers(0, 7), max_size=6)),
)


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[str, Callable[[], Dataset[Any]]]:
    """What it is, for messages, and a function that builds it anew."""
    name, source = draw(SOURCES)
    steps = draw(st.lists(STEPS, max_size=5))
    if draw(st.booleans()):
        steps.insert(0, FILTER)
    if draw(st.booleans()):
        steps.append(MARK)

    def build() -> Dataset[Any]:
        dataset = source()
        for _, step in steps:
            dataset = step(dataset)
        return dataset

    return " ".join([name, *(step for step, _ in steps)]), build
