"""Converts errors to statuses and messages, the same over HTTP and gRPC."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import NamedTuple

from monolith.errors import InternalError, OpError

_log = logging.getLogger(__name__)

_HTTP = {
    1: 499,  # cancelled, nginx's convention
    3: HTTPStatus.BAD_REQUEST,
    4: HTTPStatus.GATEWAY_TIMEOUT,
    5: HTTPStatus.NOT_FOUND,
    6: HTTPStatus.CONFLICT,
    7: HTTPStatus.FORBIDDEN,
    8: HTTPStatus.TOO_MANY_REQUESTS,
    9: HTTPStatus.PRECONDITION_FAILED,
    11: HTTPStatus.BAD_REQUEST,
    12: HTTPStatus.NOT_IMPLEMENTED,
    14: HTTPStatus.SERVICE_UNAVAILABLE,
    16: HTTPStatus.UNAUTHORIZED,
}
_LONGEST = 500


class ErrorStatus(NamedTuple):
    """Status of an error for a client."""

    code: int
    """gRPC status code."""
    http: int
    sentence: str
    retry_after_seconds: float | None
    """When to retry, if that may help."""


def refusal_of(error: BaseException) -> ErrorStatus:
    """Returns the status of an error; an unexpected error is logged, and reported without details."""
    if not isinstance(error, OpError):
        _log.error("a request failed", exc_info=error)
        error = InternalError(f"the model failed: {type(error).__name__}; see the log of the server")
    sentence = " ".join(error.message.split())
    sentence = sentence if len(sentence) <= _LONGEST else f"{sentence[:_LONGEST]}..."
    code = error.error_code
    return ErrorStatus(code, int(_HTTP.get(code, 500)), sentence, getattr(error, "retry_after_seconds", None))
