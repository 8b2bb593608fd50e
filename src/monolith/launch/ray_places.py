"""Placement of the roles of a job on a Ray cluster: all of them or none."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from monolith import environment
from monolith.clock import SystemClock
from monolith.cluster.runtimes import load_ray

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.launch.plan import LaunchPlan

_OBJECT_STORE_BYTES = 80 << 20
"""Close to Ray's minimum: rows use our own sockets."""
_TELL_SECONDS = 10.0
_LOOK_SECONDS = 0.5
_GIB = 2**30


def connected_ray(plan: LaunchPlan, address: str | None) -> tuple[Any, bool]:
    """Returns Ray, connected, and whether this call connected it.

    Args:
        plan: Plan of the job.
        address: Address of a running cluster; None: that of ``RAY_ADDRESS``, else a new cluster on this machine, on
            loopback only, which is as large as the plan needs.

    Raises:
        ConnectionError: No cluster answers at the address; the message is Ray's.
    """
    address = address or environment.get("RAY_ADDRESS") or None
    ray = load_ray(loopback_only=address is None)
    if ray.is_initialized():
        return ray, False
    if address is not None:
        ray.init(address=address, logging_level="ERROR")
        return ray, True
    needed = _sum(_bundles(plan))
    ray.init(
        address="local",
        num_cpus=math.ceil(needed["CPU"]),
        _memory=needed["memory"],
        object_store_memory=_OBJECT_STORE_BYTES,
        include_dashboard=False,
        logging_level="ERROR",
    )
    return ray, True


class RayPlaces:
    """A placement group with a bundle for every role, spread over the nodes, servers first.

    When a node dies, Ray moves its bundles to other nodes, as soon as they have capacity.
    """

    def __init__(self, ray: Any, plan: LaunchPlan) -> None:
        self._ray = ray
        self._plan = plan
        self._bundles = _bundles(plan)
        self._group = ray.util.placement_group(self._bundles, strategy="SPREAD")
        self._clock = SystemClock()
        self._look_at = self._clock.monotonic() + _TELL_SECONDS

    def wait(self, tell: Callable[[str], object], is_wanted: Callable[[], bool]) -> bool:
        """Waits until all bundles are placed; returns False if `is_wanted` returned False before."""
        while is_wanted():
            if self._group.wait(_LOOK_SECONDS):
                return True
            self.tell_of_missing(tell)
        return False

    def tell_of_missing(self, tell: Callable[[str], object]) -> None:
        """Reports missing bundles: not placed yet, or not again since their node was lost.

        Checks at most every ten seconds, so it may be called in a loop.
        """
        now = self._clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _TELL_SECONDS
        if self._ray.util.placement_group_table(self._group)["state"] != "CREATED":
            tell(f"waiting for places: {self._missing()}")

    def options_of(self, number: int) -> dict[str, Any]:
        """Returns the options of an actor in a bundle, by the number of its role in the plan."""
        strategies = self._ray.util.scheduling_strategies
        bundle = self._bundles[number]
        return {
            "num_cpus": bundle["CPU"],
            "memory": bundle["memory"],
            "scheduling_strategy": strategies.PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=number
            ),
        }

    def close(self) -> None:
        """Removes the placement group, which ends the actors in it."""
        self._ray.util.remove_placement_group(self._group)

    def _missing(self) -> str:
        needed, there = _sum(self._bundles), self._ray.cluster_resources()
        return (
            f"the job needs {needed['CPU']:g} processors and {needed['memory'] / _GIB:.1f} GiB, the cluster has"
            f" {there.get('CPU', 0.0):g} and {there.get('memory', 0.0) / _GIB:.1f} GiB in all, other jobs' included"
        )


def _bundles(plan: LaunchPlan) -> list[dict[str, float]]:
    resources = [plan.resources_of(role.kind) for role in plan.roles]
    return [{"CPU": resource.cpus, "memory": float(resource.memory_bytes)} for resource in resources]


def _sum(bundles: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(bundle[name] for bundle in bundles) for name in ("CPU", "memory")}
