"""The REST interface of TF-Serving as an ASGI application of our own; paths are those of `rest_path.py`.

An answer names what it was made with in its head ``x-model-version``, and where requests are logged the request in
``x-request-id``: as its client did, or by a name of ours. A client may say in ``x-timeout-ms`` how long it waits, and
in ``x-request-id`` who asks, which decides whether the canary answers. What is refused for overload has
``retry-after``, in seconds, and ``retry-after-ms``.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from monolith.errors import InvalidArgumentError, UnauthenticatedError, UnimplementedError
from monolith.serving.server.commands import parse_command, require_commander
from monolith.serving.server.http_error import HttpError
from monolith.serving.server.json_answer import encode_answer, metadata_of, status_of, version_text
from monolith.serving.server.json_request import parse_request
from monolith.serving.server.model_threads import Answer
from monolith.serving.server.request_core import deadline_error
from monolith.serving.server.rest_path import parse_path
from monolith.serving.server.statuses import refusal_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from monolith.cluster.credentials import ServerCredentials
    from monolith.serving.server.json_request import JsonRequest
    from monolith.serving.server.request_core import RequestCore, Target
    from monolith.serving.server.rest_path import Asked

__all__ = ["RestApplication"]

Scope: TypeAlias = "Mapping[str, Any]"
Receive: TypeAlias = "Callable[[], Awaitable[Mapping[str, Any]]]"
Send: TypeAlias = "Callable[[dict[str, Any]], Awaitable[None]]"
Headers: TypeAlias = "tuple[tuple[bytes, bytes], ...]"

_JSON = (b"content-type", b"application/json")
_CLOSE = (b"connection", b"close")


class _Response(NamedTuple):
    status: int
    body: bytes
    headers: Headers = ()


class _ClientGoneError(Exception):
    """Nobody waits for the answer."""


class RestApplication:
    """An ASGI application; its requests run in one event loop.

    Args:
        core: Takes requests to models.
        credentials: What clients must show; health and readiness are told to everybody.
    """

    def __init__(self, core: RequestCore, credentials: ServerCredentials) -> None:
        self._core = core
        self._credentials = credentials

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        try:
            response = await self._respond(scope, receive)
        except _ClientGoneError:
            return
        except HttpError as error:
            response = _refusal(error.status, error.sentence, (_CLOSE,) if error.closes else ())
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets a status and a sentence
            response = _told(error)
        length = (b"content-length", str(len(response.body)).encode())
        await send(
            {
                "type": "http.response.start",
                "status": response.status,
                "headers": [_JSON, length, *response.headers],
            }
        )
        await send({"type": "http.response.body", "body": response.body})

    async def _respond(self, scope: Scope, receive: Receive) -> _Response:
        asked = parse_path(scope["path"])
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if method != asked.method:
            raise HttpError(405, f"{asked.action} takes {asked.method}, got {scope['method']}", closes=True)
        if asked.action in ("healthz", "readyz"):
            return self._health(is_readiness=asked.action == "readyz")
        headers = dict(scope["headers"])
        if self._credentials.token is not None:
            shown = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
            if not self._credentials.accepts(shown):
                raise UnauthenticatedError("the token is wrong or missing; send: Authorization: Bearer <token>")
        if asked.action == "predict":
            return await self._predict(asked, headers, receive)
        if asked.action == "promotion":
            client = scope.get("client")
            return await self._command(asked, client and client[0], headers, receive)
        return self._describe(asked)

    def _health(self, *, is_readiness: bool) -> _Response:
        why = self._core.why_not_ready() if is_readiness else None
        return _Response(200, b'{"status":"ok"}') if why is None else _refusal(503, why)

    def _describe(self, asked: Asked) -> _Response:
        registry, target = self._core.registry, asked.target
        if asked.action == "metadata":
            with registry.using(target.name, version=target.version, label=target.label) as entry:
                return _Response(200, json.dumps(metadata_of(entry)).encode())
        entries = everything = registry.entries(target.name)
        if target.version is not None or target.label is not None:
            with registry.using(target.name, version=target.version, label=target.label) as entry:
                entries = [entry]
        refused = registry.refused(target.name) if entries == everything else {}
        return _Response(200, json.dumps(status_of(entries, registry.labels(target.name), refused)).encode())

    async def _command(
        self, asked: Asked, client: str | None, headers: dict[bytes, bytes], receive: Receive
    ) -> _Response:
        require_commander(client, headers, knows_callers=self._credentials.knows_callers)
        commands, name = self._core.registry.commands, asked.target.name
        if commands is None:
            raise UnimplementedError("this server keeps no versions of its models: nothing can be promoted here")
        if asked.verb is None:
            described = await asyncio.to_thread(commands.describe, name or None)
        else:
            fields = parse_command(await self._body(headers, receive), headers)
            described = await asyncio.to_thread(commands.command, name, asked.verb, fields)
        return _Response(200, json.dumps(described).encode())

    async def _predict(self, asked: Asked, headers: dict[bytes, bytes], receive: Receive) -> _Response:
        deadline = self._core.deadline_of(_timeout_of(headers))
        self._core.threads.require_room(deadline)
        request_id = self._core.request_id_of(headers.get(b"x-request-id"))
        body = await self._body(headers, receive)
        request = parse_request(body, max_depth=self._core.limits.json_depth)
        given = headers.get(b"x-request-id")
        target = asked.target if given is None else asked.target._replace(request_id=given.decode("latin-1"))
        answer = await self._ask(target, request, deadline, request_id)
        encoded = encode_answer(answer.outputs, is_rows=request.is_rows)
        version = (b"x-model-version", version_text(answer.version).encode())
        return _Response(200, encoded, (version,) if request_id is None else (version, (b"x-request-id", request_id)))

    async def _ask(self, target: Target, request: JsonRequest, deadline: float, request_id: bytes | None) -> Answer:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()

        def settle(outcome: Answer | BaseException) -> None:
            if future.done():
                return
            if isinstance(outcome, Answer):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)

        def done(outcome: Answer | BaseException) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, outcome)

        left = deadline - time.monotonic()
        timer = loop.call_later(max(0.0, left), settle, deadline_error(max(0.0, left)))
        try:
            self._core.ask(
                target, request.signature, request.columns, deadline=deadline, done=done, request_id=request_id
            )
            return await future
        finally:
            timer.cancel()

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        limits = self._core.limits
        told = headers.get(b"content-length", b"0")
        if not told.isdigit() or int(told) > limits.body_bytes:
            raise HttpError(
                413, f"a body may have {limits.body_bytes} bytes, got {told.decode('latin-1')}", closes=True
            )
        try:
            async with asyncio.timeout(limits.body_seconds):
                return await _read_body(receive, limits.body_bytes)
        except TimeoutError:
            raise HttpError(408, f"the body did not come within {limits.body_seconds:g} s", closes=True) from None


async def _read_body(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGoneError
        body: bytes = message["body"]
        size += len(body)
        if size > limit:
            raise HttpError(413, f"a body may have {limit} bytes, got more", closes=True)
        parts.append(body)
        if not message.get("more_body"):
            return body if len(parts) == 1 else b"".join(parts)


def _timeout_of(headers: Mapping[bytes, bytes]) -> float | None:
    text = headers.get(b"x-timeout-ms")
    if text is None:
        return None
    try:
        seconds = float(text) / 1e3
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise InvalidArgumentError(f"x-timeout-ms: must be a number of milliseconds, got {text.decode('latin-1')!r}")
    return seconds


def _refusal(status: int, sentence: str, headers: Headers = ()) -> _Response:
    return _Response(status, json.dumps({"error": sentence}).encode(), headers)


def _told(error: Exception) -> _Response:
    refusal = refusal_of(error)
    headers: list[tuple[bytes, bytes]] = []
    if refusal.retry_after_seconds is not None:
        milliseconds = math.ceil(refusal.retry_after_seconds * 1e3)
        headers.append((b"retry-after", str(math.ceil(refusal.retry_after_seconds)).encode()))
        headers.append((b"retry-after-ms", str(milliseconds).encode()))
    if isinstance(error, UnauthenticatedError):
        headers.append((b"www-authenticate", b"Bearer"))
    return _refusal(refusal.http, refusal.sentence, tuple(headers))
