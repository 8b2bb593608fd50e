"""The interface of every discovery service: the address of each index of each role."""

from __future__ import annotations

import abc
import enum
import logging
import re
import threading
from typing import TYPE_CHECKING, Self

from monolith.cluster.addresses import split_address

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_NAME = re.compile(r"[A-Za-z0-9_-]+")


class ServiceDiscoveryType(enum.Enum):
    """The discovery service of a job; the numbers are those of saved configs."""

    PRIMUS = 1
    CONSUL = 2
    ZK = 3
    MLP = 4
    HOST = 5
    """Files in a folder that all processes reach; not in ByteDance Monolith."""
    RAY = 6
    """A named actor of a Ray cluster; not in ByteDance Monolith."""


class ServiceDiscovery(abc.ABC):
    """Addresses of the processes of a job, by role (``ps``, ``worker``; the chief is worker 0) and index.

    An index has one holder: registering it again replaces the address. A registration is visible to its own process
    immediately, and to others after a delay. Returned maps belong to the caller. Thread-safe; no method may be called
    after `close`. A context manager, which closes itself.
    """

    @abc.abstractmethod
    def register(self, name: str, index: int, addr: str) -> None:
        """Makes ``addr`` the holder of an index, replacing any other holder.

        Raises:
            ValueError: The role is not letters, digits, ``_`` and ``-``; the index is below 0; the address is not
                ``host:port`` or ``[ipv6]:port``. Nothing was registered.
        """

    @abc.abstractmethod
    def deregister(self, name: str, index: int, addr: str) -> None:
        """Releases an index. Does nothing when ``addr`` does not hold it (any more)."""

    @abc.abstractmethod
    def query(self, name: str) -> dict[int, str]:
        """Returns the addresses of a role by index."""

    @abc.abstractmethod
    def query_all(self) -> dict[str, dict[int, str]]:
        """Returns the addresses of all roles that have any: role, then index."""

    def close(self) -> None:  # noqa: B027  # most services hold nothing that has to be given back
        """Stops the threads and closes the connections. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class ScheduledDiscovery(ServiceDiscovery):
    """A discovery service of a scheduler, which has placed every process of the job: also this one."""

    @property
    @abc.abstractmethod
    def server_type(self) -> str:
        """The role of this process."""

    @property
    @abc.abstractmethod
    def index(self) -> int:
        """The index of this process in its role."""

    @property
    @abc.abstractmethod
    def addr(self) -> str | None:
        """The address of this process; None: not given."""


def check_entry(name: str, index: int, addr: str) -> None:
    """Raises if no service could hold this role, index or address.

    Raises:
        ValueError: One of them is wrong; the message names it and the expected form.
    """
    check_role(name)
    if index < 0:
        raise ValueError(f"discovery: the index of a {name} must be >= 0, got {index}")
    split_address(addr)


def check_role(name: str) -> None:
    """Raises if a role could not be part of a path.

    Raises:
        ValueError: It is not letters, digits, ``_`` and ``-``.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"discovery: a role is letters, digits, '_' and '-', such as ps or worker; got {name!r}")


_log = logging.getLogger(__name__)


class Heartbeat:
    """Calls ``beat`` at an interval. When that returns False it calls ``repair``, and stops if that returns False too.

    A beat or a repair that raises is retried after the shorter retry interval. The thread is a daemon; `stop` ends it
    and waits for it, and may be called from any thread, also from within ``repair``.
    """

    def __init__(self, beat: Callable[[], bool], repair: Callable[[], bool], *, name: str) -> None:
        self._beat = beat
        self._repair = repair
        self._stopped = threading.Event()
        self._name = name
        self._thread: threading.Thread | None = None

    def start(self, interval_seconds: float, retry_seconds: float) -> None:
        """Starts the thread; the first beat comes after one interval."""
        self._thread = threading.Thread(
            target=self._run, args=(interval_seconds, retry_seconds), name=f"heartbeat-{self._name}", daemon=True
        )
        self._thread.start()

    def is_beating(self) -> bool:
        """Returns whether the heartbeat was started and has not stopped."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Stops the heartbeat; returns when the thread has ended."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, interval_seconds: float, retry_seconds: float) -> None:
        pause = interval_seconds
        while not self._stopped.wait(pause):
            try:
                if not self._beat() and not self._repair():
                    return
                pause = interval_seconds
            except Exception as err:  # noqa: BLE001 - whatever it is: without heartbeats a service would be dropped
                _log.warning("heartbeat of %s failed, next in %.1f s: %r", self._name, retry_seconds, err)
                pause = retry_seconds
