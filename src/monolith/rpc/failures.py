"""Errors in messages between a parameter server and its clients: class name and text."""

from __future__ import annotations

import errno

from monolith import errors
from monolith.rpc.protos import parameter_server_pb2 as messages

__all__ = ["error_of", "failure_of"]

_KINDS = {
    name: found
    for name, found in vars(errors).items()
    if isinstance(found, type) and issubclass(found, errors.OpError) and found is not errors.OpError
}


def failure_of(error: Exception) -> messages.Failure:
    """Encodes an error as its nearest class in `monolith.errors`."""
    if isinstance(error, errors.OpError):
        kind = next((each.__name__ for each in type(error).__mro__ if each.__name__ in _KINDS), "UnknownError")
        return messages.Failure(kind=kind, message=error.message)
    if isinstance(error, TypeError | ValueError):
        return messages.Failure(kind=errors.InvalidArgumentError.__name__, message=str(error))
    if isinstance(error, MemoryError):
        return messages.Failure(kind=errors.ResourceExhaustedError.__name__, message=f"out of memory: {error}")
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return messages.Failure(kind=errors.StorageFullError.__name__, message=str(error))
    if isinstance(error, OSError):
        return messages.Failure(kind=errors.FileUnavailableError.__name__, message=str(error))
    return messages.Failure(kind=errors.InternalError.__name__, message=f"{type(error).__name__}: {error}")


def error_of(failure: messages.Failure, *, server: str) -> errors.OpError:
    """Decodes an error to raise; `server` names its origin."""
    return _KINDS.get(failure.kind, errors.UnknownError)(f"{server}: {failure.message}")
