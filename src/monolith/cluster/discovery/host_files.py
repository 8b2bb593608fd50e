"""Discovery through files that all processes can reach: a shared folder, an object store, a test's own folder."""

from __future__ import annotations

from monolith.cluster.discovery.service_discovery import ServiceDiscovery, check_entry, check_role
from monolith.files import text_files


class HostServiceDiscovery(ServiceDiscovery):
    """Keeps the address of each process in the file ``<base>/<name>/<index>``; ``base`` is any fsspec path.

    Files are replaced atomically. They stay when a process dies: a restarted process overwrites its own, and a new run
    in the same folder has to empty it first, or use another one.
    """

    def __init__(self, base: str) -> None:
        if not base:
            raise ValueError("host files: base must be a folder that all processes reach, got ''")
        self._base = base.rstrip("/")

    def register(self, name: str, index: int, addr: str) -> None:
        """Writes the address to the file of its index."""
        check_entry(name, index, addr)
        text_files.write_text(self._file(name, index), addr)

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Removes the file if it still holds this address."""
        check_entry(name, index, addr)
        if text_files.read_text(self._file(name, index)) == addr:
            text_files.remove(self._file(name, index))

    def query(self, name: str) -> dict[int, str]:
        """Reads the addresses of a role from its files."""
        check_role(name)
        indices = sorted(int(file) for file in text_files.names_in(f"{self._base}/{name}") if file.isdecimal())
        # A file may be removed between the listing and the reading.
        return {index: addr for index in indices if (addr := text_files.read_text(self._file(name, index)))}

    def query_all(self) -> dict[str, dict[int, str]]:
        """Reads the addresses of all roles from their files."""
        return {name: found for name in text_files.names_in(self._base) if (found := self.query(name))}

    def _file(self, name: str, index: int) -> str:
        return f"{self._base}/{name}/{index}"
