"""A Ray cluster on loopback for tests: nodes are processes of this machine, and all of them end with it."""

from __future__ import annotations

import importlib
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from monolith.cluster.discovery.ray_actor import start_registry
from monolith.cluster.runtimes.ray import load_ray

_OBJECT_STORE_BYTES = 80 << 20
"""Next to Ray's least: rows do not go through it."""
_PROMISED_BYTES = 64 << 30
"""What a node says that it has; nobody takes it. By default it is what the machine has free when the node starts, so
that the memory of other tests would decide whether a job has room."""


class RayCluster:
    """A cluster that this process is connected to, through a head node that runs nothing else."""

    def __init__(self, *, num_cpus: int = 0) -> None:
        self._ray = load_ray(loopback_only=True)
        constants = importlib.import_module("ray._private.ray_constants")
        assert not constants.ENABLE_RAY_CLUSTER, "somebody has imported Ray without load_ray(loopback_only=True)"
        # Sockets are files below it, and the names of those may have no more than 107 characters.
        self._folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
        self._patch = pytest.MonkeyPatch()
        self._num_cpus = num_cpus
        self._cluster: Any = None

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add_node(self, num_cpus: int, **options: object) -> Any:
        """One more node; returned is what `remove_node` takes."""
        return self._cluster.add_node(
            num_cpus=num_cpus,
            node_ip_address="127.0.0.1",
            object_store_memory=_OBJECT_STORE_BYTES,
            memory=_PROMISED_BYTES,
            **options,
        )

    def remove_node(self, node: Any) -> None:
        """Let a node die with all that runs there."""
        self._cluster.remove_node(node, allow_graceful=False)

    def __enter__(self) -> Self:
        self._patch.setenv("RAY_TMPDIR", str(self._folder))
        # A dead node is noticed after three seconds instead of fifteen.
        self._patch.setenv("RAY_health_check_period_ms", "1000")
        self._patch.setenv("RAY_health_check_failure_threshold", "3")
        try:
            self._cluster = importlib.import_module("ray.cluster_utils").Cluster()
            self.add_node(self._num_cpus, include_dashboard=False)
            self._ray.init(address=self.address, logging_level="ERROR", log_to_driver=False)
            # Ray opens some things once for the life of a process: no test is to be blamed for them.
            self._ray.kill(start_registry("first"))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ray.shutdown()
        if self._cluster is not None:
            self._cluster.shutdown()
        self._patch.undo()
        shutil.rmtree(self._folder)
