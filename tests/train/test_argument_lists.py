from __future__ import annotations

import threading

import pytest

from monolith.cluster.addresses import PS_JOB_NAME, ps_device
from monolith.testing import get_test_tmp_dir
from monolith.train import (
    check_list,
    extend_as_list,
    get_debugging_info_file_name,
    get_meta_graph_file_name,
    to_list,
    to_snake_case,
)


class TestExtendAsList:
    def test_short_lists_and_tuples_are_filled_with_none(self) -> None:
        assert extend_as_list([1, 2], 4) == [1, 2, None, None]
        assert extend_as_list((1,), 3) == [1, None, None], "the original failed for tuples"
        assert extend_as_list([], 2) == [None, None]

    def test_long_enough_ones_are_returned_as_they_are(self) -> None:
        for given in ([1, 2, 3], (1, 2, 3)):
            assert extend_as_list(given, 3) is given
            assert extend_as_list(given, 2) is given

    def test_anything_else_is_repeated_as_copies(self) -> None:
        given = {"rate": [0.1]}
        made = extend_as_list(given, 3)
        assert made == [given] * 3
        assert made[0] is given
        assert made[1] is not given
        assert made[1] is not made[2]
        assert extend_as_list(None, 2) == [None, None]
        assert extend_as_list("x", 0) == []

    def test_what_cannot_be_copied_is_shared(self) -> None:
        lock = threading.Lock()
        assert [each is lock for each in extend_as_list(lock, 3)] == [True, True, True]


class TestCheckList:
    def test_a_list_of_an_accepted_length_is_returned_itself(self) -> None:
        given = [1, 2]
        assert check_list(given, lambda n: n == 2) is given
        assert check_list([], lambda n: n == 0) == []

    def test_none_only_where_it_may_be(self) -> None:
        assert check_list(None, lambda _: False, could_be_none=True) is None
        with pytest.raises(TypeError, match="got None"):
            check_list(None, lambda _: True)

    @pytest.mark.parametrize("candidate", [(1, 2), "ab", 3, {1: 2}])
    def test_anything_else_is_no_list(self, candidate: object) -> None:
        with pytest.raises(TypeError, match=f"got {type(candidate).__name__}"):
            check_list(candidate, lambda _: True)  # type: ignore[arg-type]

    def test_other_lengths_are_refused(self) -> None:
        with pytest.raises(ValueError, match="got 3"):
            check_list([1, 2, 3], lambda n: n == 2)


def test_to_list_wraps_everything_but_lists() -> None:
    given = [1]
    assert to_list(given) is given
    assert to_list((1, 2)) == [(1, 2)]
    assert to_list(None) == [None]
    assert to_list("ab") == ["ab"]


@pytest.mark.parametrize(
    ("name", "snake"),
    [
        ("Dense", "dense"),
        ("DeepFM", "deep_fm"),
        ("MLP", "mlp"),
        ("MMoELayer", "m_mo_e_layer"),
        ("already_snake", "already_snake"),
        ("Conv2D", "conv2d"),
        ("_Private", "private__private"),
        ("_x", "private_x"),
        ("", ""),
    ],
)
def test_to_snake_case(name: str, snake: str) -> None:
    assert to_snake_case(name) == snake


def test_names_of_devices_are_only_text() -> None:
    assert PS_JOB_NAME == "ps"
    assert ps_device(0) == "/job:ps/task:0/device:CPU:0"
    assert ps_device(-1) == "/job:ps/task:-1/device:CPU:0"


def test_names_of_files_in_a_model_directory() -> None:
    assert get_debugging_info_file_name("/m") == "/m/debugging_info.pb"
    assert get_meta_graph_file_name("s3://b/m/") == "s3://b/m/meta_graph_for_debugging.pb"


def test_the_folder_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_TMPDIR", raising=False)
    assert get_test_tmp_dir() == "/tmp"  # noqa: S108 - the original's default
    monkeypatch.setenv("TEST_TMPDIR", "/scratch")
    assert get_test_tmp_dir() == "/scratch"
