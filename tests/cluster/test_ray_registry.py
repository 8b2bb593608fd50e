"""Who holds an index of a job on Ray, by a clock that the test holds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from monolith.cluster.discovery.ray_actor import RegistryActor
from monolith.testing import FakeClock

A, B = "192.168.0.1:1001", "192.168.0.2:1002"


def test_a_process_without_heartbeats_is_dropped_when_its_lease_expires() -> None:
    clock = FakeClock()
    registry = RegistryActor(10.0, clock=clock)
    registry.register("one", ("ps", 0, A))
    registry.register("two", ("ps", 1, B))
    clock.advance(10.0)
    assert registry.beat("two")
    assert registry.addresses() == {"ps": {0: A, 1: B}}
    clock.advance(0.1)
    assert registry.addresses() == {"ps": {1: B}}


def test_a_dropped_process_is_notified_and_claims_its_index_again() -> None:
    clock = FakeClock()
    registry = RegistryActor(10.0, clock=clock)
    registry.register("one", ("ps", 0, A))
    clock.advance(11.0)
    assert not registry.beat("one")
    assert registry.claim("one", [("ps", 0, A)]) == []
    clock.advance(1.0)
    assert registry.beat("one")
    assert registry.addresses() == {"ps": {0: A}}


def test_what_another_has_taken_since_is_not_taken_back() -> None:
    clock = FakeClock()
    registry = RegistryActor(10.0, clock=clock)
    registry.register("one", ("ps", 0, A))
    clock.advance(11.0)
    registry.register("two", ("ps", 0, B))
    clock.advance(1.0)
    assert registry.claim("one", [("ps", 0, A), ("ps", 1, A)]) == [("ps", 0, A)]
    assert registry.addresses() == {"ps": {0: B, 1: A}}


def test_claiming_twice_is_claiming_once() -> None:
    registry = RegistryActor(10.0, clock=FakeClock())
    for _ in range(2):
        assert registry.claim("one", [("ps", 0, A)]) == []
    assert registry.addresses() == {"ps": {0: A}}


def test_the_exit_of_a_replaced_process_does_not_remove_its_successor() -> None:
    clock = FakeClock()
    registry = RegistryActor(10.0, clock=clock)
    registry.register("one", ("ps", 0, A))
    clock.advance(1.0)
    registry.register("two", ("ps", 0, B))
    registry.leave("one")
    assert registry.addresses() == {"ps": {0: B}}


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_lease_has_a_length(seconds: float) -> None:
    with pytest.raises(ValueError, match="lease_seconds must be > 0"):
        RegistryActor(seconds)


@pytest.mark.usefixtures("forked_starts")
def test_without_ray_the_error_names_the_package_to_install() -> None:
    program = (
        "import sys; sys.modules['ray'] = None\n"
        "from monolith.cluster.discovery import RayServiceDiscovery\n"
        "try: RayServiceDiscovery('job')\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'monolith-torch[ray]'" in done.stdout


def test_ray_is_not_imported_before_it_is_used() -> None:
    program = "import sys, monolith.cluster.discovery.ray_actor\nassert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
