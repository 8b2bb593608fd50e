"""The interface of every discovery service: who holds which index of which role, and where."""

from __future__ import annotations

import abc
import enum
import re
from typing import TYPE_CHECKING, Self

from monolith.cluster.addresses import split_address

if TYPE_CHECKING:
    from types import TracebackType

_NAME = re.compile(r"[A-Za-z0-9_-]+")


class ServiceDiscoveryType(enum.Enum):
    """Which service a job uses; the numbers are those of saved configs."""

    PRIMUS = 1
    CONSUL = 2
    ZK = 3
    MLP = 4
    HOST = 5
    """Files of a folder that all processes reach; not in the original."""
    RAY = 6
    """A named actor of a Ray cluster; not in the original."""


class ServiceDiscovery(abc.ABC):
    """Where the processes of a job are, by role (``ps``, ``worker``; the chief is worker 0) and index.

    An index has one holder: registering it again replaces the address. What is registered becomes visible to others
    after a while, at once to the one who registered. Maps that are returned belong to the caller. Every method may be
    called from any thread; after `close` none may be called. Used as a context manager it closes itself.
    """

    @abc.abstractmethod
    def register(self, name: str, index: int, addr: str) -> None:
        """Make ``addr`` the holder of an index, in place of whoever held it.

        Raises:
            ValueError: The role is not letters, digits, ``_`` and ``-``; the index is below 0; the address is not
                ``host:port`` or ``[ipv6]:port``. Nothing was registered.
        """

    @abc.abstractmethod
    def deregister(self, name: str, index: int, addr: str) -> None:
        """Give up an index; nothing happens when ``addr`` is not its holder (any more)."""

    @abc.abstractmethod
    def query(self, name: str) -> dict[int, str]:
        """The addresses of a role by index."""

    @abc.abstractmethod
    def query_all(self) -> dict[str, dict[int, str]]:
        """The addresses of all roles that have any: role, then index."""

    def close(self) -> None:  # noqa: B027  # most services hold nothing that has to be given back
        """Stop the threads and close the connections; calling it again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def check_entry(name: str, index: int, addr: str) -> None:
    """Refuse a role, an index or an address that no service could hold.

    Raises:
        ValueError: One of them is wrong; the text says which, and what was expected.
    """
    check_role(name)
    if index < 0:
        raise ValueError(f"discovery: the index of a {name} must be >= 0, got {index}")
    split_address(addr)


def check_role(name: str) -> None:
    """Refuse a role that could not be part of a path.

    Raises:
        ValueError: It is not letters, digits, ``_`` and ``-``.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"discovery: a role is letters, digits, '_' and '-', such as ps or worker; got {name!r}")
