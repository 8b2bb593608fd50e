from __future__ import annotations

import math
import re
import subprocess
import sys
import threading
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monolith.errors import NotFoundError
from monolith.observe import (
    MetricClient,
    MetricKind,
    MetricRecorder,
    MetricSample,
    get_metric_prefix,
    process_recorder,
    set_metric_prefix,
)
from monolith.observe.metric_recorder import METRIC_PREFIX_VARIABLE


@pytest.fixture
def own_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable may be set by the test: it is put back, set or not set."""
    monkeypatch.setenv(METRIC_PREFIX_VARIABLE, "before")
    monkeypatch.delenv(METRIC_PREFIX_VARIABLE)


@pytest.mark.usefixtures("own_variable")
def test_the_prefix_is_monolith_training_until_another_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_metric_prefix() == "monolith.training"
    monkeypatch.setenv(METRIC_PREFIX_VARIABLE, "")
    assert get_metric_prefix() == "monolith.training"
    set_metric_prefix("monolith.training.ranker")
    assert get_metric_prefix() == "monolith.training.ranker"


@pytest.mark.usefixtures("own_variable")
def test_child_processes_share_the_prefix() -> None:
    set_metric_prefix("site.ranker")
    program = f"import os; print(os.environ[{METRIC_PREFIX_VARIABLE!r}])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout.strip() == "site.ranker"


@pytest.mark.parametrize("prefix", ["", None, 7])
def test_a_prefix_that_is_no_text_is_refused(prefix: Any) -> None:
    with pytest.raises(ValueError, match="metric prefix must be a text"):
        set_metric_prefix(prefix)


@pytest.mark.usefixtures("own_variable")
def test_a_client_takes_the_prefix_of_its_birth() -> None:
    recorder = MetricRecorder()
    set_metric_prefix("monolith.training.a")
    client = MetricClient(recorder=recorder)
    set_metric_prefix("monolith.training.b")
    client.emit_counter("steps")
    MetricClient("", recorder=recorder).emit_counter("bare")
    assert [reading.name for reading in recorder.read()] == ["bare", "monolith.training.a.steps"]


def test_clients_without_a_recorder_share_that_of_the_process() -> None:
    process_recorder().clear()
    MetricClient("p").emit_counter("x", 2)
    MetricClient("p").emit_counter("x", 3)
    assert process_recorder().counter("p.x") == 5
    process_recorder().clear()
    assert process_recorder().read() == []


def test_counters_add_stores_replace_timers_collect() -> None:
    recorder = MetricRecorder(timer_bounds=[1, 10])
    client = MetricClient("m", recorder=recorder)
    for value in (1, 2.5):
        client.emit_counter("c", value)
        client.emit_store("s", value)
    for value in (1, 1.0000001, 10, 11, -3):
        client.emit_timer("t", value)
    client.flush()
    assert recorder.counter("m.c") == 3.5
    assert recorder.gauge("m.s") == 2.5
    timer = recorder.timer("m.t")
    assert (timer.count, timer.minimum, timer.maximum) == (5, -3, 11)
    assert timer.sum == pytest.approx(20.0000001)
    assert timer.mean == pytest.approx(4.00000002)
    assert timer.buckets == ((1.0, 2), (10.0, 4), (math.inf, 5))


def test_what_is_emitted_often_can_be_bound_once() -> None:
    recorder = MetricRecorder()
    client = MetricClient("serving", recorder=recorder)
    tags = {"model_name": "ranker", "code": 0}
    count, time = client.counter("requests", tags), client.timer("latency", tags)
    for value in (1, 2.5):
        count(value)
        time(value)
    client.emit_counter("requests", 1, tags)
    client.emit_timer("latency", 4, tags)
    assert recorder.counter("serving.requests", tags) == 4.5
    assert (recorder.timer("serving.latency", tags).count, recorder.timer("serving.latency", tags).sum) == (3, 7.5)
    recorder.clear()
    count(1)
    time(1)
    assert recorder.counter("serving.requests", tags) == recorder.timer("serving.latency", tags).count == 1


def test_what_is_bound_is_refused_as_what_is_emitted() -> None:
    client = MetricClient("", recorder=MetricRecorder())
    for bind in (client.counter, client.timer):
        with pytest.raises(ValueError, match="must be a text"):
            bind("")
        with pytest.raises(ValueError, match="tag names must be texts"):
            bind("requests", {"a.b": 1, "a_b": 2})
    with pytest.raises(ValueError, match="'le' is the name of a bucket"):
        client.timer("latency", {"le": 1})
    with pytest.raises(ValueError, match="must be finite"):
        client.counter("requests")(-1)
    with pytest.raises(ValueError, match="must be finite"):
        client.timer("latency")(math.nan)
    with pytest.raises(TypeError, match="must be a number"):
        client.timer("latency")("1")  # type: ignore[arg-type]


def test_every_set_of_tags_has_its_own_value() -> None:
    recorder = MetricRecorder()
    recorder.add("c", 1, {"mode": "full", "index": 3})
    recorder.add("c", 10, {"index": "3", "mode": "full"})  # the same: order does not count, values are texts
    recorder.add("c", 100, {"mode": "dense_only"})
    recorder.add("c", 1000)
    assert recorder.counter("c", {"mode": "full", "index": 3}) == 11
    assert recorder.read() == [
        MetricSample("c", MetricKind.COUNTER, {}, 1000.0),
        MetricSample("c", MetricKind.COUNTER, {"index": "3", "mode": "full"}, 11.0),
        MetricSample("c", MetricKind.COUNTER, {"mode": "dense_only"}, 100.0),
    ]


def test_names_are_kept_with_their_dots() -> None:
    recorder = MetricRecorder()
    recorder.set("export_models.latest_version", 5)
    assert recorder.read()[0].name == "export_models.latest_version"


@pytest.mark.parametrize("value", [2, 2.0, True, np.float32(2), np.int64(2), torch.tensor(2), Decimal(2)])
def test_any_number_is_a_value(value: Any) -> None:
    recorder = MetricRecorder()
    recorder.set("s", value)
    assert recorder.gauge("s") == float(value)


@pytest.mark.parametrize("value", ["2", b"2", None, [2], object(), torch.ones(2)])
def test_what_is_no_number_is_refused_and_leaves_nothing(value: Any) -> None:
    recorder = MetricRecorder()
    for emit in (recorder.add, recorder.measure, recorder.set):
        with pytest.raises(TypeError, match=r"metric 'x': value must be a number, got"):
            emit("x", value)
    assert recorder.read() == []


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, -math.inf])
def test_a_counter_only_grows(value: float) -> None:
    recorder = MetricRecorder()
    with pytest.raises(ValueError, match=r"counter 'x': value must be finite and >= 0"):
        recorder.add("x", value)
    assert recorder.read() == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_timer_refuses_and_a_store_keeps_what_is_not_finite(value: float) -> None:
    recorder = MetricRecorder()
    with pytest.raises(ValueError, match=r"timer 'x': value must be finite"):
        recorder.measure("x", value)
    recorder.set("loss", value)
    assert repr(recorder.gauge("loss")) == repr(value)


def test_one_name_has_one_kind() -> None:
    recorder = MetricRecorder()
    recorder.add("x")
    with pytest.raises(ValueError, match=r"metric 'x' is a counter; it cannot be a gauge too"):
        recorder.set("x", 1)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("set", "a.b"), ("set", "a_b")),
        (("add", "a.b"), ("add", "a-b")),
        (("add", "a"), ("add", "a_total")),
        (("measure", "a"), ("set", "a_count")),
        (("set", "a.sum"), ("measure", "a")),
        (("add", "a"), ("set", "a.total")),
    ],
)
def test_names_that_collide_on_prometheus_are_rejected(first: tuple[str, str], second: tuple[str, str]) -> None:
    recorder = MetricRecorder()
    getattr(recorder, first[0])(first[1], 1)
    with pytest.raises(ValueError, match=rf"on Prometheus with metric {re.escape(repr(first[1]))}"):
        getattr(recorder, second[0])(second[1], 1)
    assert [reading.name for reading in recorder.read()] == [first[1]]


@pytest.mark.parametrize("tags", [{"": 1}, {"__name__": 1}, {"a.b": 1, "a_b": 2}])
def test_tags_that_prometheus_has_no_labels_for_are_refused(tags: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"metric 'x': tag names must be texts"):
        MetricRecorder().add("x", 1, tags)


def test_the_label_of_buckets_is_no_tag_of_a_timer() -> None:
    with pytest.raises(ValueError, match=r"timer 'x': tag 'le'"):
        MetricRecorder().measure("x", 1, {"le": 5})


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_metric_has_a_name(name: Any) -> None:
    with pytest.raises(ValueError, match="metric name must be a text"):
        MetricClient("p", recorder=MetricRecorder()).emit_counter(name)
    with pytest.raises(ValueError, match="metric name must be a text"):
        MetricRecorder().set(name, 1)


@pytest.mark.parametrize("bounds", [[2, 1], [1, 1], [math.nan], [math.inf]])
def test_bounds_of_buckets_ascend(bounds: list[float]) -> None:
    with pytest.raises(ValueError, match="timer_bounds must be finite and ascending"):
        MetricRecorder(timer_bounds=bounds)


def test_reading_a_metric_that_was_not_emitted_lists_the_emitted_ones() -> None:
    recorder = MetricRecorder()
    with pytest.raises(NotFoundError, match=r"no counter 'x' with tags \{\}; there are: none"):
        recorder.counter("x")
    recorder.add("x", 1, {"a": 1})
    with pytest.raises(NotFoundError, match=r"no counter 'x' with tags \{\}; there are: counter 'x' \{'a': '1'\}"):
        recorder.counter("x")
    with pytest.raises(NotFoundError, match="no gauge 'x'"):
        recorder.gauge("x", {"a": 1})
    with pytest.raises(NotFoundError, match="no timer 'x'"):
        recorder.timer("x", {"a": 1})


def test_no_addition_of_any_thread_is_lost() -> None:
    recorder = MetricRecorder()

    def emit() -> None:
        for number in range(1000):
            recorder.add("c", 1, {"parity": number % 2})
            recorder.measure("t", number)

    threads = [threading.Thread(target=emit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.counter("c", {"parity": 0}) == recorder.counter("c", {"parity": 1}) == 2000
    timer = recorder.timer("t")
    assert (timer.count, timer.sum) == (4000, 4 * 999 * 500)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50))
def test_buckets_count_what_is_at_most_their_bound(values: list[float]) -> None:
    recorder = MetricRecorder()
    for value in values:
        recorder.measure("t", value)
    for bound, count in recorder.timer("t").buckets:
        assert count == sum(value <= bound for value in values)
