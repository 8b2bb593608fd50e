"""What another package adds by its entry points: a transport, and two discovery services. It uses public names only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from monolith.cluster.discovery import HostServiceDiscovery, ScheduledDiscovery, StaticServiceDiscovery
from monolith.deltalog import Appender, Claim, Extent, Tail, Transport, transport_of


class ExampleTransport(Transport):
    """A log at ``mem2:///path``, in files below it."""

    holds_bases = False

    def __init__(self, place: str, **options: Any) -> None:
        self.place = place
        folder = place.removeprefix("mem2://")
        self._files = transport_of(folder)(folder, **options)

    def parts(self) -> list[str]:
        return self._files.parts()

    def extent(self, part: str) -> Extent | None:
        return self._files.extent(part)

    def open(self, part: str, opening: Callable[[Claim], bytes], *, after_writer: int | None = None) -> Appender:
        return self._files.open(part, opening, after_writer=after_writer)

    def tail(self, part: str, number: int | None) -> Tail:
        return self._files.tail(part, number)

    def trim(self, part: str, below: int) -> int:
        return self._files.trim(part, below)

    def put_document(self, name: str, text: bytes) -> None:
        self._files.put_document(name, text)

    def documents(self) -> Mapping[str, bytes]:
        return self._files.documents()

    def remove_document(self, name: str) -> None:
        self._files.remove_document(name)

    def close(self) -> None:
        self._files.close()


class BoardDiscovery(HostServiceDiscovery):
    """Addresses at ``board:///path``."""

    def __init__(self, url: str) -> None:
        super().__init__(url.removeprefix("board://"))


class RosterDiscovery(StaticServiceDiscovery, ScheduledDiscovery):
    """A scheduler with one server and two workers; ``roster://worker/1`` is the second of these."""

    addr = None

    def __init__(self, url: str) -> None:
        super().__init__({"ps": ["10.0.0.1:2222"], "worker": ["10.0.1.1:2222", "10.0.1.2:2222"]})
        self._role, _, self._index = url.removeprefix("roster://").partition("/")

    @property
    def server_type(self) -> str:
        return self._role

    @property
    def index(self) -> int:
        return int(self._index)
