"""Errors on the wire: as the status of a gRPC call, or as a `Failure` in an answer; converted both ways."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from monolith import errors
from monolith.rpc.protos import parameter_server_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger(__name__)

_BY_NAME = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.OpError) and kind is not errors.OpError
}
_BY_CODE = {kind.error_code: kind for kind in _BY_NAME.values() if errors.OpError in kind.__bases__}
"""gRPC status code -> error class."""


class Status(NamedTuple):
    """The end of a call that failed."""

    code: int
    """gRPC status code."""
    message: str
    metadata: tuple[tuple[str, str], ...] = ()
    """Trailing metadata of the call."""


def status_of(error: Exception) -> Status:
    """Returns the status of an error that a method raised. An error that is no `OpError` is logged."""
    if isinstance(error, errors.OpError):
        return Status(error.error_code, error.message)
    _log.error("a call failed", exc_info=error)
    return Status(errors.InternalError.error_code, f"{type(error).__name__}: {error}")


def error_of(error: Any, *, prefix: str, texts: Mapping[type[errors.OpError], str] | None = None) -> errors.OpError:
    """Converts an error of a gRPC call to an error of this library.

    Args:
        error: The `grpc.RpcError` of a call.
        prefix: Beginning of the message, which the text of the status follows.
        texts: Messages that replace the text of the status, by error class.
    """
    kind = _BY_CODE.get(error.code().value[0], errors.UnknownError)
    replaced = (texts or {}).get(kind)
    return kind(f"{prefix}{error.details()}" if replaced is None else replaced)


def failure_of(error: Exception) -> messages.Failure:
    """Encodes an error as its nearest class in `monolith.errors`."""
    if isinstance(error, errors.OpError):
        kind = next((base.__name__ for base in type(error).__mro__ if base.__name__ in _BY_NAME), "UnknownError")
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


def error_of_failure(failure: messages.Failure, *, server: str) -> errors.OpError:
    """Decodes an error to raise; `server` names its origin."""
    return _BY_NAME.get(failure.kind, errors.UnknownError)(f"{server}: {failure.message}")
