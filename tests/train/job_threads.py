"""Runs the processes of a job as threads of this one, for tests of what they do together; real servers and sockets."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from monolith.cluster.discovery import ServiceDiscovery
from monolith.train import JobProgramConfig, RunnerConfig, distributed_train

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from monolith.cluster.manager import Incomplete
    from monolith.hook import Hook
    from monolith.hooks import SyncBackend
    from monolith.train import Params, Trainer

LONGEST_SECONDS = 240.0


class MemoryDiscovery(ServiceDiscovery):
    """Who is where, for threads of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, dict[int, str]] = {"ps": {}, "worker": {}}
        self.changed = threading.Event()

    def register(self, name: str, index: int, addr: str) -> None:
        with self._lock:
            self._known[name][index] = addr
        self.changed.set()

    def deregister(self, name: str, index: int, addr: str) -> None:
        with self._lock:
            if self._known[name].get(index) == addr:
                del self._known[name][index]

    def query(self, name: str) -> dict[int, str]:
        with self._lock:
            return dict(self._known[name])

    def query_all(self) -> dict[str, dict[int, str]]:
        return {name: self.query(name) for name in ("ps", "worker")}


class ThreadJob:
    """A job whose roles are threads; each is one call of `distributed_train`.

    Args:
        model_dir: Of the job.
        num_ps: Servers.
        num_workers: Workers.
        params: Makes the parameters of the task of a worker.
        options: Of every role.
        settings: The same.
        sync_backend: Who is pushed to.
    """

    def __init__(
        self,
        model_dir: Path | str,
        *,
        num_ps: int = 1,
        num_workers: int = 1,
        params: Callable[[], Params],
        options: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        sync_backend: SyncBackend | None = None,
    ) -> None:
        self._backend = sync_backend
        self.discovery = MemoryDiscovery()
        self._options = {
            "model_dir": str(model_dir),
            "num_ps": num_ps,
            "num_workers": num_workers,
            "host": "127.0.0.1",
            "serve_controller": False,
            "retry_wait_in_secs": 0,
            **(options or {}),
        }
        self._params = params
        self._settings = dict(settings or {})
        self.roles: dict[tuple[str, int], Future[Trainer | None]] = {}

    def start(self, role: str, index: int, *, hooks: Sequence[Hook] = (), **other: Any) -> Future[Trainer | None]:
        """Begins a role; `other` are options of its own."""
        config = RunnerConfig(**{**self._options, "server_type": role, "index": index, **other})
        settings = JobProgramConfig(query_failure_handler=self._wait, **self._settings)
        outcome: Future[Trainer | None] = Future()

        def run() -> None:
            try:
                outcome.set_result(
                    distributed_train(
                        config, self.discovery, self._params(), self._backend, user_hooks=hooks, settings=settings
                    )
                )
            except BaseException as error:  # noqa: BLE001 - raised where the outcome is asked for
                outcome.set_exception(error)

        threading.Thread(target=run, name=f"{role}-{index}", daemon=True).start()
        self.roles[role, index] = outcome
        return outcome

    def _wait(self, _: Incomplete) -> None:
        self.discovery.changed.wait(0.05)

    def start_all(self, hooks: Sequence[Hook] = ()) -> None:
        """Begins all roles, workers first."""
        for index in range(self._options["num_workers"]):
            self.start("worker", index, hooks=hooks)
        servers = self._options["num_ps"] + self._options.get("num_extra_ps", 0)
        for index in range(servers + self._options.get("num_redundant_ps", 0)):
            self.start("ps", index)

    def result(self, role: str, index: int) -> Trainer | None:
        """What a role has returned; raises what it raised."""
        return self.roles[role, index].result(LONGEST_SECONDS)

    def run(self, hooks: Sequence[Hook] = ()) -> list[Trainer]:
        """Begins all roles, waits for all, and returns the trainers of the workers."""
        self.start_all(hooks)
        done = {place: each.result(LONGEST_SECONDS) for place, each in self.roles.items()}
        return [trainer for (role, _), trainer in sorted(done.items()) if role == "worker" and trainer is not None]
