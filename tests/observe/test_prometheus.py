from __future__ import annotations

import contextlib
import importlib
import socket
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from monolith.errors import UnavailableError
from monolith.observe import MetricClient, MetricRecorder, MetricsEndpoint, PrometheusCollector, prometheus


def scrape(port: int, host: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=20) as answer:
        return str(answer.read().decode())


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def recorder_with_everything() -> MetricRecorder:
    recorder = MetricRecorder(timer_bounds=[0.5, 1])
    client = MetricClient("monolith.training.my-ranker", recorder=recorder)
    tags = {"model_name": "ranker", "cluster.type": 'st"able\\\n'}
    client.emit_counter("run_steps.all", 30, tags)
    client.emit_counter("run_steps.all", 2)
    client.emit_timer("save_checkpoint_time", 0.5, {"mode": "full"})
    client.emit_timer("save_checkpoint_time", 3, {"mode": "full"})
    client.emit_store("step_loss", float("nan"))
    client.emit_store("1st", 7)
    return recorder


def test_names_tags_and_values_arrive_as_prometheus_spells_them() -> None:
    with MetricsEndpoint(recorder=recorder_with_everything()) as endpoint:
        text = scrape(endpoint.port)
    found = samples(text)
    name = "monolith_training_my_ranker_"
    assert found.pop((name + "step_loss", ())) != 0  # NaN differs from everything
    assert found == {
        (name + "run_steps_all_total", (("cluster_type", 'st"able\\\n'), ("model_name", "ranker"))): 30,
        (name + "run_steps_all_total", ()): 2,
        (name + "save_checkpoint_time_bucket", (("le", "0.5"), ("mode", "full"))): 1,
        (name + "save_checkpoint_time_bucket", (("le", "1.0"), ("mode", "full"))): 1,
        (name + "save_checkpoint_time_bucket", (("le", "+Inf"), ("mode", "full"))): 2,
        (name + "save_checkpoint_time_count", (("mode", "full"),)): 2,
        (name + "save_checkpoint_time_sum", (("mode", "full"),)): 3.5,
        (name + "1st", ()): 7,
    }
    assert f"# TYPE {name}save_checkpoint_time histogram\n" in text
    assert f"# TYPE {name}run_steps_all_total counter\n" in text
    assert f"# TYPE {name}step_loss gauge\n" in text
    assert text.count("# TYPE") == 4


def test_a_name_that_begins_with_a_digit_is_spelt_with_an_underscore() -> None:
    recorder = MetricRecorder()
    recorder.set("1st", 1, {"2nd": 3})
    with MetricsEndpoint(recorder=recorder) as endpoint:
        assert samples(scrape(endpoint.port)) == {("_1st", (("_2nd", "3"),)): 1}


def test_every_scrape_shows_the_current_values() -> None:
    recorder = MetricRecorder()
    with MetricsEndpoint(recorder=recorder) as endpoint:
        assert scrape(endpoint.port) == ""
        recorder.add("x")
        assert samples(scrape(endpoint.port)) == {("x_total", ()): 1}
        recorder.add("x")
        assert samples(scrape(endpoint.port)) == {("x_total", ()): 2}


def test_without_a_recorder_it_shows_that_of_the_process() -> None:
    client = MetricClient("endpoint.test")
    client.emit_store("x", 4)
    with MetricsEndpoint() as endpoint:
        assert samples(scrape(endpoint.port))["endpoint_test_x", ()] == 4


def test_a_registry_of_the_user_keeps_its_own_metrics() -> None:
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.Gauge("mine", "a metric of the user", registry=registry).set(1)
    recorder = MetricRecorder()
    recorder.set("ours", 2)
    with MetricsEndpoint(recorder=recorder, registry=registry) as endpoint:
        assert samples(scrape(endpoint.port)) == {("mine", ()): 1, ("ours", ()): 2}
    assert b"ours" not in prometheus_client.generate_latest(registry)


def test_the_collector_alone_serves_any_registry() -> None:
    registry = prometheus_client.CollectorRegistry()
    registry.register(PrometheusCollector(recorder_with_everything()))
    labels = {"mode": "full"}
    assert registry.get_sample_value("monolith_training_my_ranker_save_checkpoint_time_sum", labels) == 3.5


@pytest.mark.slow
def test_closing_frees_the_port_and_may_be_repeated() -> None:
    endpoint = MetricsEndpoint(recorder=MetricRecorder())
    assert any(thread.name == f"metrics-endpoint-{endpoint.port}" for thread in threading.enumerate())
    endpoint.close()
    endpoint.close()
    with pytest.raises(urllib.error.URLError):
        scrape(endpoint.port)
    with MetricsEndpoint(endpoint.port, recorder=MetricRecorder()) as again:
        assert again.port == endpoint.port


@pytest.mark.slow
def test_slow_clients_block_no_scrape_and_are_disconnected_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "CONNECTION_SECONDS", 3600.0)
    with MetricsEndpoint(recorder=MetricRecorder()) as endpoint, contextlib.ExitStack() as ended:
        before = threading.active_count()
        slow = [
            ended.enter_context(socket.create_connection(("127.0.0.1", endpoint.port), timeout=60)) for _ in range(100)
        ]
        for peer in slow:
            with contextlib.suppress(OSError):  # the oldest are gone already
                peer.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert scrape(endpoint.port) == ""
        end = time.monotonic() + 60
        while threading.active_count() - before > prometheus.MOST_CONNECTIONS:  # those hung up on are about to end
            assert time.monotonic() < end
            time.sleep(0.01)
        monkeypatch.setattr(prometheus, "CONNECTION_SECONDS", 1.0)
        while threading.active_count() > before:
            assert time.monotonic() < end
            with contextlib.suppress(OSError):
                slow[-1].sendall(b"x")  # a byte now and then does not help
            time.sleep(0.05)
        assert scrape(endpoint.port) == ""


def test_a_port_in_use_is_reported_and_does_not_change_the_registry() -> None:
    registry = prometheus_client.CollectorRegistry()
    with MetricsEndpoint(recorder=MetricRecorder()) as first:
        with pytest.raises(
            UnavailableError, match=rf"cannot listen on '127.0.0.1' port {first.port}: .*choose another"
        ):
            MetricsEndpoint(first.port, registry=registry)
        assert not registry._collector_to_names


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 in this Python")
def test_it_listens_on_ipv6_too() -> None:
    try:
        endpoint = MetricsEndpoint(address="::1", recorder=MetricRecorder())
    except UnavailableError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")
    with endpoint:
        assert scrape(endpoint.port, "[::1]") == ""


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    for make in (PrometheusCollector, MetricsEndpoint):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'monolith-torch\[prometheus\]'"):
            make()
