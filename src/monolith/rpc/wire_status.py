"""Converts errors to gRPC statuses with a message, and back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from monolith import errors
from monolith.rpc.credentials import load_grpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.rpc.credentials import ServerCredentials

_log = logging.getLogger(__name__)

_CLASSES = {
    kind.error_code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.OpError) and errors.OpError in kind.__bases__
}
"""Status code -> error class."""


def import_serving_grpc() -> Any:
    """Imports the gRPC package on first use."""
    return load_grpc(who="serving", extra="serving")


def answered(serve: Callable[[Any, Any], Any], credentials: ServerCredentials) -> Callable[[Any, Any], Any]:
    """Wraps a method for gRPC: errors become statuses, and calls without the token are rejected."""
    grpc = import_serving_grpc()
    codes = {code.value[0]: code for code in grpc.StatusCode}

    def answer(request: Any, context: Any) -> Any:
        """Answers, or aborts the call: `abort` raises."""
        if not credentials.accepts(context.invocation_metadata()):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is wrong or missing")
        try:
            return serve(request, context)
        except errors.OpError as error:
            refused = codes[error.error_code], error.message
        except Exception as error:  # noqa: BLE001 - any error is reported to the caller
            _log.exception("serving: a request failed")
            refused = grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"
        return context.abort(*refused)

    return answer


def error_of(error: Any, *, who: str, timeout_seconds: float | None = None) -> errors.OpError:
    """Converts a gRPC error to an error of this library; `who` names the callee."""
    code, text = error.code().value[0], error.details()
    if code == errors.DeadlineExceededError.error_code and timeout_seconds is not None:
        return errors.DeadlineExceededError(f"{who}: no answer within {timeout_seconds:g} s")
    return _CLASSES.get(code, errors.UnknownError)(f"{who}: {text}")
