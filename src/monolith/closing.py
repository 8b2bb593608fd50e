"""The base of objects that hold connections, files or threads until they are closed."""

from __future__ import annotations

from typing import Self


class Closing:
    """A class with `close`, which a ``with`` block calls at its end.

    >>> class Door(Closing):
    ...     def close(self) -> None:
    ...         print("closed")
    >>> with Door():
    ...     print("open")
    open
    closed
    """

    __slots__ = ()

    def close(self) -> None:
        """Releases what the object holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
