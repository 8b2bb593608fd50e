"""Who holds an index of a job on Ray, by a clock that the test holds."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from monolith.cluster.discovery import RayServiceDiscovery, ray_actor
from monolith.cluster.discovery.ray_actor import RegistryActor
from monolith.errors import UnavailableError
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


class DiedError(Exception):
    """As Ray's error for an actor that died."""


class FakeRay:
    """A cluster whose first actor has died, and whose second one, of the same name, answers."""

    exceptions = SimpleNamespace(ActorDiedError=DiedError, RayError=DiedError)

    def __init__(self, num_dead: int) -> None:
        self.num_dead = num_dead
        self.looked_up = 0

    def is_initialized(self) -> bool:
        return True

    def get_actor(self, name: str, *, namespace: str) -> Any:
        self.looked_up += 1
        assert (name, namespace) == ("job", "monolith")
        return SimpleNamespace(addresses=SimpleNamespace(remote=lambda: self.looked_up))

    def get(self, number: int, *, timeout: float) -> Any:
        assert timeout > 0
        if number <= self.num_dead:
            raise DiedError(f"actor {number} died")
        return {"ps": {0: A}}


@pytest.mark.parametrize(("num_dead", "looked_up"), [(0, 1), (1, 2)])
def test_an_actor_that_another_process_has_started_again_is_found(
    num_dead: int, looked_up: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = FakeRay(num_dead)
    monkeypatch.setattr(ray_actor, "load_ray", lambda: ray)
    discovery = RayServiceDiscovery("job", "monolith")
    assert discovery.query_all() == {"ps": {0: A}}
    assert ray.looked_up == looked_up


def test_an_actor_that_no_process_starts_again_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_actor, "load_ray", lambda: FakeRay(9))
    with pytest.raises(UnavailableError, match=r"cannot addresses: the actor 'job' .* does not answer: actor 2 died"):
        RayServiceDiscovery("job", "monolith").query_all()
