"""Combiners as configs: names, shapes, refusals. What they compute is in test_embeddings_against_reference.py."""

from __future__ import annotations

from typing import Any

import pytest

from monolith.config import Config
from monolith.nn.combiners import FirstN, ReduceMean, ReduceSqrtN, ReduceSum, make_combiner


def test_names_stand_for_combiners() -> None:
    assert make_combiner("sum") == ReduceSum()
    assert make_combiner("mean") == ReduceMean()
    assert make_combiner("sqrtn") == ReduceSqrtN()
    assert make_combiner(("first_n", 3)) == FirstN(3)
    given = FirstN(7)
    assert make_combiner(given) is given


def test_only_a_sequence_has_places_of_its_own() -> None:
    assert [make_combiner(name).max_seq_length for name in ("sum", "mean")] == [0, 0]
    assert FirstN(5).max_seq_length == 5
    assert ReduceSum().shape(2, 4) == ReduceMean().shape(2, 4) == (2, 4)
    assert FirstN(5).shape(2, 4) == (2, 5, 4)
    assert FirstN(5).width(4) == 20


@pytest.mark.parametrize("bad", ["max", "SUM", None, 3, ("mean", 2), ("first_n",), ("first_n", 1, 2), []])
def test_an_unknown_combiner_is_refused_with_what_is_known(bad: Any) -> None:
    with pytest.raises(
        ValueError, match=r"combiner must be 'sum', 'mean', 'sqrtn', \('first_n', n\) or a Combiner, got"
    ):
        make_combiner(bad)


def test_a_sequence_without_a_length_raises_an_error_that_suggests_first_n() -> None:
    with pytest.raises(ValueError, match=r"'first_n' needs a number of places; write FirstN\(20\)"):
        make_combiner("first_n")  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [0, -1, 2**21])
def test_first_n_needs_a_sensible_length(n: int) -> None:
    with pytest.raises(ValueError, match=r"FirstN: n must be in \[1, 1048576\], got"):
        FirstN(n)


@pytest.mark.parametrize("n", [1.5, "3", True])
def test_first_n_requires_an_integer(n: Any) -> None:
    with pytest.raises(TypeError, match="FirstN: n must be an integer, got"):
        FirstN(n)


@pytest.mark.parametrize("combiner", [ReduceSum(), ReduceMean(), ReduceSqrtN(), FirstN(4)])
def test_combiners_travel_as_dictionaries(combiner: Config) -> None:
    assert Config.from_dict(combiner.to_dict()) == combiner
