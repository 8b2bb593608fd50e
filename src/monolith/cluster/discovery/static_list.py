"""Discovery without a service, from a fixed list of addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.cluster.discovery.service_discovery import ServiceDiscovery, check_entry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class StaticServiceDiscovery(ServiceDiscovery):
    """A fixed list of addresses for each role, in the order of their indices; registering does nothing.

    >>> StaticServiceDiscovery({"ps": ["10.0.0.1:2222", "10.0.0.2:2222"]}).query("ps")
    {0: '10.0.0.1:2222', 1: '10.0.0.2:2222'}
    """

    def __init__(self, addrs: Mapping[str, Sequence[str]]) -> None:
        """Keeps a copy of the lists.

        Raises:
            ValueError: A role or an address is malformed.
        """
        for name, listed in addrs.items():
            for index, addr in enumerate(listed):
                check_entry(name, index, addr)
        self._addrs = {name: dict(enumerate(listed)) for name, listed in addrs.items()}

    def register(self, name: str, index: int, addr: str) -> None:
        """Does nothing: the list is fixed."""

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Does nothing: the list is fixed."""

    def query(self, name: str) -> dict[int, str]:
        """Returns the addresses of a role by index.

        Raises:
            ValueError: The list has no such role.
        """
        if name not in self._addrs:
            raise ValueError(f"discovery: no role {name!r} in the list, which has {', '.join(self._addrs) or 'none'}")
        return dict(self._addrs[name])

    def query_all(self) -> dict[str, dict[int, str]]:
        """Returns all roles that have addresses."""
        return {name: dict(listed) for name, listed in self._addrs.items() if listed}
