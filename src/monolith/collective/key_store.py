"""Small values that the ranks of a run exchange by name, at any time and from any thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from datetime import timedelta

__all__ = ["KeyStore", "MemoryKeyStore"]


class KeyStore(Protocol):
    """The used interface of a store of torch.distributed. Thread-safe."""

    def set(self, key: str, value: str, /) -> None:
        """Writes a value."""
        ...

    def get(self, key: str, /) -> bytes:
        """Returns a value; waits until it exists."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Returns whether all keys exist."""
        ...

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Returns when all keys exist."""
        ...

    def compare_set(self, key: str, expected: str, value: str, /) -> bytes:
        """Writes a value if the current one is `expected` (``""``: or if there is none); returns the current value."""
        ...


class MemoryKeyStore:
    """A key store for a run of one process, without a socket."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: str, /) -> None:
        """Writes a value."""
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str, /) -> bytes:
        """Returns a value; waits until it exists."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._values)
            return self._values[key]

    def check(self, keys: list[str], /) -> bool:
        """Returns whether all keys exist."""
        with self._changed:
            return self._values.keys() >= set(keys)

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Returns when all keys exist."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._values.keys() >= set(keys), timeout.total_seconds()):
                missing = sorted(set(keys) - self._values.keys())
                raise TimeoutError(f"{missing[0]} was not set within {timeout.total_seconds():g} s")

    def compare_set(self, key: str, expected: str, value: str, /) -> bytes:
        """Writes a value if the current one is `expected` (``""``: or if there is none); returns the current value."""
        with self._changed:
            if self._values.get(key, b"") == expected.encode():
                self._values[key] = value.encode()
                self._changed.notify_all()
            return self._values.get(key, expected.encode())
