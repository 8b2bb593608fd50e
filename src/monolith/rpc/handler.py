"""Methods of an object as gRPC handlers: authorization, and errors, which `status_of` and `error_of` convert."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from google.protobuf import message_factory

from monolith import errors
from monolith.errors import OpError
from monolith.rpc.credentials import ServerCredentials, load_grpc
from monolith.rpc.protos import coordinator_pb2
from monolith.rpc.protos import parameter_server_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


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


_log = logging.getLogger(__name__)

CONTROL = messages.DESCRIPTOR.services_by_name["ParameterServer"]
COORDINATOR = coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"]
SERVICES = (CONTROL, COORDINATOR)
"""Services of a server; only the home server has the second one. Their method names are distinct."""
MESSAGE_BYTES = 64 << 20
"""Maximum message size at either end."""

Send: TypeAlias = "Callable[[Any], None]"
"""Sends an answer of a stream; None ends the stream. Any thread may call it, one at a time."""


class UnaryMethod(NamedTuple):
    """A method with one request and one answer."""

    serve: Callable[[Any, Any], Any]
    """Called with the request and the context of the call; an exception becomes the status of the call."""
    parse: Callable[[bytes], Any] | None
    """Decodes a request; None: the method takes bytes."""
    serialize: Callable[[Any], bytes]
    """Encodes an answer."""


def unary_handler(
    service: str,
    methods: Mapping[str, UnaryMethod],
    credentials: ServerCredentials,
    *,
    prefix: str = "",
    status: Callable[[str, Exception], Status] = lambda _, error: status_of(error),
) -> Any:
    """Returns a service as a gRPC handler. An error of a method becomes the status of the call.

    Args:
        service: Full name of the service.
        methods: Its methods, by their names on the wire.
        credentials: Credentials that callers must present.
        prefix: Beginning of the message about a wrong token.
        status: Converts the error of a method, called with its name on the wire.
    """
    grpc = load_grpc()
    codes = {code.value[0]: code for code in grpc.StatusCode}

    def handle(name: str, method: UnaryMethod) -> Any:
        def answer(request: Any, context: Any) -> Any:
            _require_known(context, credentials, prefix)
            try:
                return method.serve(request, context)
            except Exception as error:  # noqa: BLE001 - the caller receives any error
                ended = status(name, error)
            if ended.metadata:
                context.set_trailing_metadata(ended.metadata)
            return context.abort(codes[ended.code], ended.message or codes[ended.code].name)  # raises

        return grpc.unary_unary_rpc_method_handler(answer, method.parse, method.serialize)

    handlers = {name: handle(name, method) for name, method in methods.items()}
    return grpc.method_handlers_generic_handler(service, handlers)


def make_handler(
    descriptor: Any,
    service: object,
    credentials: ServerCredentials,
    *,
    lasting: Mapping[str, Callable[[Any, Any, Send], None]],
) -> Any:
    """Returns a service as a gRPC handler. An error of a method is part of its answer; the call itself succeeds.

    Args:
        descriptor: Descriptor of the service.
        service: Its methods by their names on the wire.
        credentials: Credentials that callers must present.
        lasting: Streams that last as long as their clients, and hold no thread meanwhile: called once, with the
            request, the context, and a function that sends.
    """
    grpc = load_grpc()
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
    }

    def handle(method: Any) -> Any:
        request_class, answer_class = classes_of(method)
        if method.name in lasting:
            behavior = _lasting_behavior(lasting[method.name], credentials)
        else:
            make_behavior: Any = _stream_behavior if method.server_streaming else _plain_behavior
            behavior = make_behavior(getattr(service, method.name), answer_class, credentials)
        return make[method.client_streaming, method.server_streaming](
            behavior, request_class.FromString, answer_class.SerializeToString
        )

    handlers = {method.name: handle(method) for method in descriptor.methods}
    return grpc.method_handlers_generic_handler(descriptor.full_name, handlers)


def _require_known(context: Any, credentials: ServerCredentials, prefix: str = "") -> None:
    if not credentials.accepts(context.invocation_metadata()):
        context.abort(load_grpc().StatusCode.UNAUTHENTICATED, f"{prefix}the token is wrong or missing")


def classes_of(method: Any) -> tuple[Any, Any]:
    """Returns the classes of a method's request and answer."""
    return message_factory.GetMessageClass(method.input_type), message_factory.GetMessageClass(method.output_type)


def _plain_behavior(serve: Callable[[Any], Any], answer_class: Any, credentials: ServerCredentials) -> Any:
    def answer(request: Any, context: Any) -> Any:
        _require_known(context, credentials)
        try:
            return serve(request)
        except Exception as error:  # noqa: BLE001 - any error is sent to the caller
            return answer_class(failure=_noted(serve, error))

    return answer


def _stream_behavior(serve: Callable[[Any], Iterator[Any]], answer_class: Any, credentials: ServerCredentials) -> Any:
    def answer(request: Any, context: Any) -> Iterator[Any]:
        _require_known(context, credentials)
        try:
            answers = serve(request)
            yield answer_class()  # confirms that the requested data exists
            yield from answers
        except Exception as error:  # noqa: BLE001 - any error is sent to the caller
            yield answer_class(failure=_noted(serve, error))

    return answer


def _lasting_behavior(begin: Callable[[Any, Any, Send], None], credentials: ServerCredentials) -> Any:
    def stay(request: Any, context: Any, send: Send) -> None:
        _require_known(context, credentials)
        begin(request, context, send)

    stay.experimental_non_blocking = True  # type: ignore[attr-defined]  # as gRPC's own health service does it
    return stay


def _noted(serve: Callable[..., Any], error: Exception) -> messages.Failure:
    failure = failure_of(error)
    if isinstance(error, OpError):
        _log.info("%s: %s", serve.__name__, failure.message)
    else:
        _log.warning("%s failed", serve.__name__, exc_info=error)
    return failure
