"""The exception tree: one base, the numbers of gRPC, and the core's refusals under their names."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

from monolith import _core, errors

CLASSES = {
    name: member
    for name, member in inspect.getmembers(errors, inspect.isclass)
    if issubclass(member, errors.OpError) and member is not errors.OpError
}


def test_every_status_code_has_one_class() -> None:
    direct = [member for member in CLASSES.values() if errors.OpError in member.__bases__]
    assert sorted(member.error_code for member in direct) == list(range(1, 17))


def test_a_failing_file_is_unavailable_to_others() -> None:
    own = {errors.FileUnavailableError, errors.StorageFullError}
    assert set(CLASSES.values()) - set(errors.OpError.__subclasses__()) == own
    assert issubclass(errors.StorageFullError, errors.ResourceExhaustedError)
    assert errors.StorageFullError.error_code == errors.ResourceExhaustedError.error_code
    assert issubclass(errors.FileUnavailableError, errors.UnavailableError)
    assert errors.FileUnavailableError.error_code == errors.UnavailableError.error_code


def test_the_tree_in_the_docstring_is_the_tree_in_the_code() -> None:
    drawn = re.findall(r"[├└]── (\w+Error)", str(errors.__doc__))
    assert drawn == ["OpError", *sorted(CLASSES)]


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_an_error_keeps_its_message(name: str) -> None:
    error = CLASSES[name]("table 'user': dim must be > 0, got -1")
    assert str(error) == error.message == "table 'user': dim must be > 0, got -1"


def test_a_wrong_argument_can_be_caught_as_a_value_error() -> None:
    assert issubclass(errors.InvalidArgumentError, ValueError)
    assert [name for name, member in CLASSES.items() if issubclass(member, ValueError)] == ["InvalidArgumentError"]


def test_a_refusal_of_the_core_arrives_under_its_name() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="0"):
        _core.set_num_threads(0)


@pytest.mark.parametrize(
    "ids",
    [np.zeros(3, np.int32), np.zeros((2, 2), np.int64), np.zeros(8, np.int64)[::2]],
    ids=["dtype", "shape", "stride"],
)
def test_the_core_takes_arrays_as_they_are_or_not_at_all(ids: np.ndarray) -> None:
    with pytest.raises(TypeError):
        _core.bucket_of(ids)


def test_bucket_of_covers_the_full_range_of_ids() -> None:
    extremes = np.array([np.iinfo(np.int64).min, -1, 0, 1, np.iinfo(np.int64).max], np.int64)
    buckets = _core.bucket_of(extremes)
    assert buckets.dtype == np.int32
    assert np.all((buckets >= 0) & (buckets < _core.NUM_BUCKETS))
    assert _core.bucket_of(extremes[:0]).shape == (0,)


def test_buckets_of_consecutive_ids_are_even() -> None:
    counts = np.bincount(_core.bucket_of(np.arange(1_024_000)), minlength=_core.NUM_BUCKETS)
    # 1,000 expected in each; five standard deviations of a fair throw are 158.
    assert counts.min() > 842
    assert counts.max() < 1158
