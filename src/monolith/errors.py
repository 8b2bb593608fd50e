"""Runtime errors, as exceptions to catch by name.

    Exception
    └── OpError                        catch this to catch them all
        ├── AbortedError               a conflict with concurrent work; start over from a fresh read
        ├── AlreadyExistsError         it exists, and was not to be replaced
        ├── CancelledError             stopped on request
        ├── DataLossError              bytes are not what was written: truncated, flipped, foreign
        ├── DeadlineExceededError      not finished in the time given
        ├── FailedPreconditionError    a right call at the wrong time
        ├── FileUnavailableError       a file could not be read or written (also an UnavailableError)
        ├── InternalError              a broken invariant of monolith; please report it
        ├── InvalidArgumentError       a wrong call (also a ValueError)
        ├── NotFoundError              it does not exist
        ├── OutOfRangeError            past the end
        ├── PermissionDeniedError      authenticated, but not allowed
        ├── ResourceExhaustedError     no memory, no space, no quota
        ├── StorageFullError           no space left for a file (also a ResourceExhaustedError)
        ├── UnauthenticatedError       not authenticated
        ├── UnavailableError           not available now; a retry may help
        ├── UnimplementedError         not done by this build or this peer
        └── UnknownError               a foreign error without a class of its own

The names and numbers are those of ``tf.errors`` and of gRPC's status codes, so an error keeps its class across
processes; `FileUnavailableError` and `StorageFullError` are monolith's own, and arrive in other processes as their base
classes, `UnavailableError` and `ResourceExhaustedError`. A wrong call from Python raises ``ValueError`` or
``TypeError``; one that the core rejects arrives as `InvalidArgumentError`, which is a ``ValueError`` too, so one
``except ValueError`` covers both. A missing or stale core is the only plain ``ImportError``.
"""

from __future__ import annotations

from typing import ClassVar


class OpError(Exception):
    """Base of all runtime errors of monolith; carries its message and its status code."""

    error_code: ClassVar[int] = 2
    """The gRPC status code of this class."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class CancelledError(OpError):
    """The work was stopped on request, before it was done."""

    error_code = 1


class UnknownError(OpError):
    """An error of another system for which there is no better class."""

    error_code = 2


class InvalidArgumentError(OpError, ValueError):
    """A wrong call: whatever the state of the system, these arguments cannot work."""

    error_code = 3


class DeadlineExceededError(OpError):
    """The work was not finished in the time given; it may still have taken effect."""

    error_code = 4


class NotFoundError(OpError):
    """A file, table, server or name that does not exist."""

    error_code = 5


class AlreadyExistsError(OpError):
    """Something of this name exists and was not to be replaced."""

    error_code = 6


class PermissionDeniedError(OpError):
    """The caller is authenticated, but not allowed to do this."""

    error_code = 7


class ResourceExhaustedError(OpError):
    """No memory, disk space, row numbers or quota left."""

    error_code = 8


class StorageFullError(ResourceExhaustedError):
    """A file could not be written: no space, quota or file size is left."""


class FailedPreconditionError(OpError):
    """A right call at the wrong time, such as a second cut while one is open."""

    error_code = 9


class AbortedError(OpError):
    """A conflict with concurrent work; start over from a fresh read."""

    error_code = 10


class OutOfRangeError(OpError):
    """Past the end of the data; how an input signals that it is exhausted."""

    error_code = 11


class UnimplementedError(OpError):
    """Not supported by this build or by the peer."""

    error_code = 12


class InternalError(OpError):
    """An invariant of monolith does not hold; please report it."""

    error_code = 13


class UnavailableError(OpError):
    """The operating system or a server rejected the call for now; a retry may help."""

    error_code = 14


class FileUnavailableError(UnavailableError):
    """A file could not be read or written: the storage fails, not a peer, so that a restart does not help."""


class DataLossError(OpError):
    """Bytes that are not what was written: truncated, changed or of another format."""

    error_code = 15


class UnauthenticatedError(OpError):
    """The caller is not authenticated."""

    error_code = 16
