from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.cli._bench.measurement import Measurement, Sense, median_ratio
from monolith.cli._bench.setting import Setting

RATIO = Measurement(row="r", measure="m", figure=10.0, peer="torch", peer_figure=4.0, ratio=2.5, limit=2.5)


def test_a_ratio_on_the_limit_is_ok_on_both_sides() -> None:
    assert RATIO.ok is True
    assert dataclasses.replace(RATIO, sense=Sense.AT_MOST).ok is True


def test_a_ratio_beyond_the_limit_is_not_ok() -> None:
    assert dataclasses.replace(RATIO, ratio=2.49).ok is False
    assert dataclasses.replace(RATIO, ratio=2.51, sense=Sense.AT_MOST).ok is False


def test_the_figure_is_judged_when_there_is_no_peer() -> None:
    alone = Measurement(row="r", measure="m", figure=9.0, unit="us", limit=10.0, sense=Sense.AT_MOST)
    assert alone.ok is True
    assert alone.requirement == "<= 10 us"


def test_a_missing_peer_leaves_the_verdict_open_even_if_the_figure_is_above_the_limit() -> None:
    missing = dataclasses.replace(RATIO, peer_figure=None, ratio=None)
    assert missing.ok is None
    assert missing.requirement == ">= 2.5 x"


def test_not_a_number_is_never_ok() -> None:
    assert dataclasses.replace(RATIO, ratio=math.nan).ok is False


def test_a_measurement_without_a_limit_is_information() -> None:
    assert dataclasses.replace(RATIO, limit=None).ok is None
    assert dataclasses.replace(RATIO, limit=None).requirement == ""


@given(
    figure=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    ratio=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    sense=st.sampled_from(Sense),
    note=st.text(),
)
def test_json_carries_a_measurement_unchanged(
    figure: float | None, ratio: float | None, sense: Sense, note: str
) -> None:
    measurement = dataclasses.replace(RATIO, figure=figure, ratio=ratio, sense=sense, note=note)
    assert Measurement.from_json(json.loads(json.dumps(measurement.to_json()))) == measurement


def test_the_ratio_is_the_median_of_the_rounds_so_drift_of_the_machine_cancels() -> None:
    ours, peer = [100.0, 50.0, 10.0], [50.0, 25.0, 5.0]
    assert median_ratio(ours, peer) == 2.0
    with pytest.raises(ValueError, match="shorter"):
        median_ratio(ours, peer[:2])


def test_a_setting_survives_json() -> None:
    setting = Setting(threads=3).quick()
    assert Setting.from_json(json.loads(json.dumps(setting.to_json()))) == setting


def test_a_setting_refuses_zero_threads_by_name() -> None:
    with pytest.raises(ValueError, match="'threads': expected a number above 0, got 0"):
        Setting(threads=0)


def test_quick_keeps_threads_and_disk_and_shrinks_every_size() -> None:
    full = Setting(threads=7, directory="/somewhere")
    quick = full.quick()
    assert (quick.threads, quick.directory) == (7, "/somewhere")
    assert quick.small_rows < full.small_rows
    assert quick.large_rows < full.large_rows
    assert quick.huge_rows < full.huge_rows
    assert max(quick.memory_rows) < max(full.memory_rows)
