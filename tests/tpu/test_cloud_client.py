"""What is asked of the cloud, by a transport that a test owns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from monolith.errors import DeadlineExceededError, FailedPreconditionError, UnavailableError
from monolith.testing import FakeClock
from monolith.tpu import CloudTpu
from monolith.tpu.cloud_client import make_client


class Cloud:
    """Answers as the cloud does, and remembers what it was asked."""

    def __init__(self, *healths: str, addresses: tuple[str, ...] = ("10.0.0.2", "10.0.0.3")) -> None:
        self.healths = list(healths)
        self.addresses = addresses
        self.asked: list[tuple[str, str]] = []
        self.headers: list[Mapping[str, str]] = []

    def __call__(self, method: str, url: str, headers: Mapping[str, str]) -> bytes:
        self.asked.append((method, url))
        self.headers.append(headers)
        if "metadata" in url:
            answers = {"project-id": b"shop", "zone": b"projects/7/zones/us-b", "token": b'{"access_token": "secret"}'}
            return answers[url.rpartition("/")[2]]
        if "requestversion" in url:
            return b""
        health = self.healths.pop(0) if len(self.healths) > 1 else self.healths[0]
        endpoints = [{"ipAddress": address} for address in self.addresses]
        return json.dumps({"state": "READY", "health": health, "networkEndpoints": endpoints}).encode()


def test_every_node_receives_its_version() -> None:
    cloud = Cloud("HEALTHY")
    CloudTpu("pod", transport=cloud).configure_tpu_version("nightly build")
    node = "https://tpu.googleapis.com/v1/projects/shop/locations/us-b/nodes/pod"
    assert ("GET", node) in cloud.asked
    assert cloud.headers[cloud.asked.index(("GET", node))] == {"Authorization": "Bearer secret"}
    assert [url for method, url in cloud.asked if method == "POST"] == [
        "http://10.0.0.2:8475/requestversion/nightly%20build",
        "http://10.0.0.3:8475/requestversion/nightly%20build",
    ]


def test_a_given_project_and_zone_are_not_queried() -> None:
    cloud = Cloud("HEALTHY")
    assert CloudTpu("pod", zone="eu-a", project="mine", transport=cloud).num_hosts() == 2
    assert [url for _, url in cloud.asked if "metadata" in url] == [
        "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"
    ]
    assert cloud.asked[-1][1].endswith("/projects/mine/locations/eu-a/nodes/pod")


def test_health_is_waited_for() -> None:
    clock = FakeClock()
    CloudTpu("pod", transport=Cloud("UNHEALTHY_TENSORFLOW", "TIMEOUT", "HEALTHY"), clock=clock).wait_for_healthy()
    assert clock.monotonic() == 20.0


def test_health_is_not_waited_for_without_end() -> None:
    clock = FakeClock()
    with pytest.raises(DeadlineExceededError, match="TPU 'pod' is 'TIMEOUT' after 1200 s"):
        CloudTpu("pod", transport=Cloud("TIMEOUT"), clock=clock).wait_for_healthy()
    assert clock.monotonic() == 1200.0


def test_a_node_without_an_address_is_named() -> None:
    with pytest.raises(FailedPreconditionError, match="TPU 'pod' has no address: its state is 'READY'; start it first"):
        CloudTpu("pod", transport=Cloud("HEALTHY", addresses=())).num_hosts()


@pytest.mark.parametrize("answer", [b"<html>", b"[]"])
def test_an_answer_that_is_no_object_is_refused(answer: bytes) -> None:
    def transport(method: str, url: str, headers: Mapping[str, str]) -> bytes:
        return b'{"access_token": "x"}' if "token" in url else answer

    with pytest.raises(UnavailableError, match="expected, got"):
        CloudTpu("pod", zone="z", project="p", transport=transport).num_hosts()


def test_the_clouds_own_client_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Client:
        def __init__(self, **place: Any) -> None:
            calls.append(place)

        def configure_tpu_version(self, version: str) -> None:
            calls.append(version)

        def wait_for_healthy(self) -> None:
            calls.append("healthy")

    library = type("library", (), {"Client": Client})
    monkeypatch.setattr("monolith.tpu.cloud_client.importlib.import_module", lambda name: library)
    client = make_client("pod", zone="z", project="p", find=lambda name: object())
    client.configure_tpu_version("nightly")
    client.wait_for_healthy()
    assert calls == [{"tpu": "pod", "zone": "z", "project": "p"}, "nightly", "healthy"]
    assert isinstance(make_client("pod", zone="z", project="p", find=lambda name: None), CloudTpu)
