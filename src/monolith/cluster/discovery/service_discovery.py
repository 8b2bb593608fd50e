"""The interface of every discovery service: the address of each index of each role."""

from __future__ import annotations

import abc
import enum
import re
from typing import TYPE_CHECKING

from monolith.background import END, Backoff, PeriodicThread
from monolith.closing import Closing
from monolith.cluster.addresses import split_address

if TYPE_CHECKING:
    from collections.abc import Callable

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


class ServiceDiscovery(Closing, abc.ABC):
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

    def query(self, name: str) -> dict[int, str]:
        """Returns the addresses of a role by index.

        Raises:
            ValueError: The role is not letters, digits, ``_`` and ``-``, or the service has a fixed list without it.
        """
        check_role(name)
        return self.query_all().get(name, {})

    @abc.abstractmethod
    def query_all(self) -> dict[str, dict[int, str]]:
        """Returns the addresses of all roles that have any: role, then index."""

    def close(self) -> None:  # most services hold nothing that has to be given back
        """Stops the threads and closes the connections. Idempotent."""


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


def start_heartbeat(
    beat: Callable[[], bool], repair: Callable[[], bool], *, name: str, interval_seconds: float, retry_seconds: float
) -> PeriodicThread:
    """Starts a thread that calls ``beat`` at an interval; the first time after one interval.

    When ``beat`` returns False it calls ``repair``, and ends if that returns False too. A call that raises is retried
    after the shorter retry interval.
    """
    thread = PeriodicThread(
        lambda: None if beat() or repair() else END,
        every=interval_seconds,
        name=f"heartbeat-{name}",
        backoff=Backoff(retry_seconds, retry_seconds),
    )
    thread.start(after=interval_seconds)
    return thread
