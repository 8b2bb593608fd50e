"""`ShardServer`: serves one shard of a model, with the calls of a ``ps_<i>`` sub-graph.

In the trailing metadata of an answer, a shard reports its incarnation (a client that pushes rows has to start from
scratch after a change) and the increments of the log that its rows contain.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from typing import TYPE_CHECKING, Any, Final, Self

from google.protobuf.wrappers_pb2 import Int64Value

from monolith.cluster import concat_ip_and_port
from monolith.config import Config, config, require_positive
from monolith.errors import InternalError, InvalidArgumentError, NotFoundError, OpError, UnavailableError
from monolith.rpc import RpcServer, ServerCredentials, UnaryMethod, load_grpc, unary_handler
from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.shards.replicas import shard_model
from monolith.serving.tensor_messages import (
    METHODS,
    MODEL_SERVICE,
    PREDICTION_SERVICE,
    add_health,
    message_of,
    value_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.serving.shards.shard_tables import HeldRows, ShardTables, VersionRows

_log = logging.getLogger(__name__)

MESSAGE_BYTES = 256 << 20
"""Maximum size of a request and of an answer."""
GRACE_SECONDS = 5.0
LIFE_KEY: Final = "monolith-life"
SPARSE_KEY: Final = "monolith-sparse-version"


@config
class ShardServerConfig(Config):
    """Keyword arguments of `ShardServer`."""

    host: str = "127.0.0.1"
    """Interface to listen on; by default only this machine can call."""
    port: int = 0
    """Port; 0: a free one."""
    credentials: ServerCredentials | None = None
    """Credentials that callers must present; None: none."""
    threads: int = 4
    """Number of concurrent requests."""
    count: Callable[[str, float, int], None] | None = None
    """Called with the signature, the seconds and the status (0: success) of each request, by the answering thread."""

    def __post_init__(self) -> None:
        require_positive(self, "threads")


class ShardServer:
    """Server of ``PredictionService.Predict`` and ``ModelService.GetModelStatus`` for one shard. A context manager.

    Args:
        rows: The rows of the shard, by version.
        model: Name of the model.
        index: Index of the shard.
        sparse: Returns the increments of a log that the rows contain, part -> number.
        why_not_ready: Returns why the shard is not ready; None: it is. Requests are rejected with that reason until the
            shard is ready for the first time; later they are answered with the current rows.
        options: The fields of `ShardServerConfig`, by name.
    """

    def __init__(
        self,
        rows: HeldRows,
        *,
        model: str,
        index: int,
        sparse: Callable[[], Mapping[str, int]] | None = None,
        why_not_ready: Callable[[], str | None] | None = None,
        **options: Any,
    ) -> None:
        settings = ShardServerConfig(**options)
        self._rows = rows
        self.model = shard_model(model, index)
        """Model name in requests."""
        self._sparse = sparse
        self._why = why_not_ready or (lambda: None)
        self._count = settings.count or (lambda *_: None)
        self._was_ready = False
        self._is_ending = False
        self.life = secrets.token_hex(8)
        """Incarnation of this process's rows."""
        self._server = self._built(settings.credentials or ServerCredentials(), settings.threads)
        self._health = add_health(self._server.grpc_server, self.why_not_ready)
        port = self._server.listen(concat_ip_and_port(settings.host, settings.port))
        self.address = concat_ip_and_port(settings.host, port)
        """Address of the server, ``host:port``."""

    @property
    def tables(self) -> ShardTables:
        """Tables of the newest version."""
        return self._rows.newest.tables

    def why_not_ready(self) -> str | None:
        """Returns why the shard is not ready, as a sentence; None if it is."""
        if self._is_ending:
            return "the shard is about to end"
        reason = self._why()
        self._was_ready |= reason is None
        return reason

    def start(self) -> None:
        """Starts serving."""
        self._server.start()
        _log.info("shard %s serves %s rows on %s", self.model, self.tables.num_rows, self.address)

    def show_ending(self) -> None:
        """Makes the shard not ready; it keeps serving."""
        self._is_ending = True
        self._health.enter_graceful_shutdown()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Waits until the server stops, or for the given time; returns whether it is still serving."""
        return bool(self._server.grpc_server.wait_for_termination(timeout_seconds))

    def close(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Rejects new requests, and waits up to `grace_seconds` for those in flight. Idempotent."""
        self.show_ending()
        self._server.close(grace_seconds)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Calls

    def _predict(self, request: messages.PredictRequest, context: Any) -> messages.PredictResponse:
        begin, code = time.monotonic(), InternalError.error_code
        try:
            answer = self._answer(request, context)
            code = 0
        except OpError as error:
            code = error.error_code
            raise
        else:
            return answer
        finally:
            self._count(request.model_spec.signature_name, time.monotonic() - begin, code)

    def _answer(self, request: messages.PredictRequest, context: Any) -> messages.PredictResponse:
        rows = self._rows_of(request.model_spec)
        if not self._was_ready and (reason := self.why_not_ready()) is not None:
            raise UnavailableError(f"{self.model}: not ready: {reason}")
        signature = request.model_spec.signature_name
        sparse = {} if self._sparse is None else dict(self._sparse())  # read before the rows, which are then not older
        inputs = {name: value_of(tensor, name=name) for name, tensor in request.inputs.items()}
        outputs = rows.tables.call(signature, inputs)
        names = list(request.output_filter) or list(outputs)
        missing = [name for name in names if name not in outputs]
        if missing:
            raise InvalidArgumentError(f"output_filter: no output {missing[0]!r}; {signature} has {', '.join(outputs)}")
        context.set_trailing_metadata(((LIFE_KEY, self.life), (SPARSE_KEY, json.dumps(sparse))))
        return messages.PredictResponse(
            model_spec=messages.ModelSpec(
                name=self.model, signature_name=signature, version=Int64Value(value=rows.version)
            ),
            outputs={name: message_of(outputs[name]) for name in names},
        )

    def _status(self, request: messages.GetModelStatusRequest, context: Any) -> messages.GetModelStatusResponse:
        rows = self._rows_of(request.model_spec)
        context.set_trailing_metadata(((LIFE_KEY, self.life),))
        reason = self.why_not_ready()
        state = messages.ModelVersionStatus.LOADING if reason else messages.ModelVersionStatus.AVAILABLE
        status = messages.StatusProto(error_code=0, error_message=reason or "")
        version = messages.ModelVersionStatus(version=rows.version, state=state, status=status)
        return messages.GetModelStatusResponse(model_version_status=[version])

    def _rows_of(self, spec: messages.ModelSpec) -> VersionRows:
        if spec.name != self.model:
            raise NotFoundError(f"no model {spec.name!r}; {self.model!r} is served here")
        if spec.HasField("version_label"):
            raise NotFoundError(f"{self.model}: a shard has no labels, got {spec.version_label!r}")
        try:
            return self._rows.of(spec.version.value if spec.HasField("version") else None)
        except NotFoundError as error:
            raise NotFoundError(f"{self.model}: {error.message}") from None

    # Internals

    def _built(self, credentials: ServerCredentials, threads: int) -> RpcServer:
        load_grpc(who="serving", extra="serving")
        calls: dict[str, dict[str, Callable[[Any, Any], Any]]] = {
            PREDICTION_SERVICE: {"Predict": self._predict},
            MODEL_SERVICE: {"GetModelStatus": self._status},
        }
        handlers = [
            unary_handler(
                service,
                {
                    name: UnaryMethod(
                        serve,
                        METHODS[service][name].request.FromString,
                        METHODS[service][name].response.SerializeToString,
                    )
                    for name, serve in methods.items()
                },
                credentials,
            )
            for service, methods in calls.items()
        ]
        return RpcServer(
            handlers,
            credentials,
            name="shard",
            num_threads=threads,
            message_bytes=MESSAGE_BYTES,
            max_calls=64 * threads,
        )
