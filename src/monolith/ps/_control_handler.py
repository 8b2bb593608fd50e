"""Connects the control of a parameter server to gRPC: who may call, and how an error is answered."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from monolith.cluster.credentials import load_grpc
from monolith.errors import OpError
from monolith.ps._failures import failure_of
from monolith.ps.protos import parameter_server_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monolith.cluster.credentials import ServerCredentials
    from monolith.ps._control_service import ControlService

__all__ = ["MESSAGE_BYTES", "SERVICE", "import_grpc", "make_handler"]

_log = logging.getLogger(__name__)

SERVICE = messages.DESCRIPTOR.services_by_name["ParameterServer"]
MESSAGE_BYTES = 64 << 20
"""The largest message that either end takes."""
_STAY = "Stay"


def import_grpc() -> Any:
    """The gRPC package, imported on first use."""
    return load_grpc(who="a parameter server", extra="ps")


def make_handler(service: ControlService, credentials: ServerCredentials) -> Any:
    """The service as gRPC wants it; an error of a method is part of its answer, and ends no call."""
    grpc = import_grpc()
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
    }

    def require_known(context: Any) -> None:
        if not credentials.accepts(context.invocation_metadata()):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is wrong or missing")

    def handle(method: Any) -> Any:
        answer_class = getattr(messages, method.output_type.name)
        if method.name == _STAY:
            behavior = _stay_behavior(service, require_known)
        elif method.server_streaming:
            behavior = _stream_behavior(getattr(service, method.name), answer_class, require_known)
        else:
            behavior = _plain_behavior(getattr(service, method.name), answer_class, require_known)
        request_class = getattr(messages, method.input_type.name)
        return make[method.client_streaming, method.server_streaming](
            behavior, request_class.FromString, answer_class.SerializeToString
        )

    handlers = {method.name: handle(method) for method in SERVICE.methods}
    return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)


def _plain_behavior(
    serve: Callable[[Any], Any], answer_class: Any, require_known: Callable[[Any], None]
) -> Callable[[Any, Any], Any]:
    def answer(request: Any, context: Any) -> Any:
        require_known(context)
        try:
            return serve(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets to know
            return answer_class(failure=_noted(serve, error))

    return answer


def _stream_behavior(
    serve: Callable[[Any], Iterator[Any]], answer_class: Any, require_known: Callable[[Any], None]
) -> Callable[[Any, Any], Iterator[Any]]:
    def answer(request: Any, context: Any) -> Iterator[Any]:
        require_known(context)
        try:
            found = serve(request)
            yield answer_class()  # what was asked for is there
            yield from found
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets to know
            yield answer_class(failure=_noted(serve, error))

    return answer


def _stay_behavior(service: ControlService, require_known: Callable[[Any], None]) -> Any:
    """A stream that lasts as long as its client, and holds no thread meanwhile."""

    def stay(request: Any, context: Any, send: Callable[[Any], None]) -> None:
        require_known(context)
        client = request.client
        service.visitors.enter(client, lambda: send(None))
        if not context.add_callback(lambda: service.leave(client)):
            service.leave(client)  # it is gone already
            return
        send(messages.StayResponse(life=service.life))

    stay.experimental_non_blocking = True  # type: ignore[attr-defined]  # as gRPC's own health service does it
    return stay


def _noted(serve: Callable[..., Any], error: Exception) -> messages.Failure:
    failure = failure_of(error)
    if isinstance(error, OpError):
        _log.info("%s: %s", serve.__name__, failure.message)
    else:
        _log.warning("%s failed", serve.__name__, exc_info=error)
    return failure
