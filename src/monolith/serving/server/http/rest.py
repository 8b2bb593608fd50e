"""The REST interface of TF-Serving; `parse_path` has the paths.

An answer has its model version in the header ``x-model-version``, and if requests are logged the request id in
``x-request-id``: that of the client, or a generated one. A client may set a timeout in ``x-timeout-ms``, and a request
id in ``x-request-id``, which decides whether the canary answers. A response to overload has ``retry-after``, in
seconds, and ``retry-after-ms``.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from monolith.errors import InvalidArgumentError, PermissionDeniedError, UnauthenticatedError, UnimplementedError
from monolith.serving.server.http.json_request import encode_answer, metadata_of, parse_request, status_of, version_text
from monolith.serving.server.http.message import HttpError, HttpRequest, HttpResponse, Reply, error_response
from monolith.serving.server.model_threads import Answer
from monolith.serving.server.request_core import RequestDispatcher, Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.rpc import ServerCredentials

_SMALL_BODY_BYTES = 64 << 10
"""Bodies up to this size are decoded by the event loop, in less than a millisecond; others by threads."""
_DECODING_THREADS = 2


class RestApplication:
    """HTTP application of a server; predictions are computed by the model threads.

    Health and readiness need no credentials.
    """

    def __init__(self, core: RequestDispatcher, credentials: ServerCredentials) -> None:
        self._core = core
        self._credentials = credentials
        self._decoders = ThreadPoolExecutor(_DECODING_THREADS, thread_name_prefix="decode")

    def close(self) -> None:
        """Stops its threads; bodies that wait for decoding are dropped."""
        self._decoders.shutdown(cancel_futures=True)

    def begin(self, request: HttpRequest) -> HttpResponse | None:
        """Rejects a request that its head suffices to reject; None: the body is to be read."""
        route = request.route = parse_path(request.path)
        method = "GET" if request.method == "HEAD" else request.method
        if method != route.method:
            raise HttpError(405, f"{route.action} takes {route.method}, got {request.method}", closes=True)
        if route.action in ("healthz", "readyz"):
            return self._health(is_readiness=route.action == "readyz")
        headers = request.headers
        if self._credentials.token is not None:
            shown = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers.items()]
            if not self._credentials.accepts(shown):
                raise UnauthenticatedError("the token is wrong or missing; send: Authorization: Bearer <token>")
        if route.action == "predict":
            request.deadline = self._core.deadline_of(_timeout_of(headers))
            self._core.threads.require_room(request.deadline)
        elif route.action == "promotion":
            require_commander(request.client, headers, knows_callers=self._credentials.knows_callers)
        return None

    def answer(self, request: HttpRequest, reply: Reply) -> None:
        """Answers a request that `begin` accepted."""
        route = request.route
        if route.action == "predict" and len(request.body) <= _SMALL_BODY_BYTES:
            self._predict(route, request, reply)
        elif route.action == "predict":
            self._decoders.submit(self._predict_large, route, request, reply)
        elif route.action == "promotion":  # in a thread, since it may load versions
            threading.Thread(target=self._command, args=(route, request, reply), name="promotion", daemon=True).start()
        else:
            reply(self._describe(route))

    def _health(self, *, is_readiness: bool) -> HttpResponse:
        why = self._core.why_not_ready() if is_readiness else None
        if why is not None:
            raise HttpError(503, why)
        return HttpResponse(200, b'{"status":"ok"}')

    def _describe(self, route: Route) -> HttpResponse:
        registry, target = self._core.registry, route.target
        if route.action == "metadata":
            with registry.using(target.name, version=target.version, label=target.label) as entry:
                return HttpResponse(200, json.dumps(metadata_of(entry)).encode())
        entries, refused = registry.status(target.name, target.version, target.label)
        return HttpResponse(200, json.dumps(status_of(entries, registry.labels(target.name), refused)).encode())

    def _command(self, route: Route, request: HttpRequest, reply: Reply) -> None:
        commands, name = self._core.registry.commands, route.target.name
        try:
            if commands is None:
                raise UnimplementedError("this server keeps no versions of its models: nothing can be promoted here")  # noqa: TRY301 - as any error
            if route.verb is None:
                described = commands.describe(name or None)
            else:
                described = commands.command(name, route.verb, parse_command(request.body, request.headers))
            reply(HttpResponse(200, json.dumps(described).encode()))
        except Exception as error:  # noqa: BLE001 - any error becomes a response
            reply(error_response(error))

    def _predict_large(self, route: Route, request: HttpRequest, reply: Reply) -> None:
        """Decodes a body that would block the event loop; an expired request is not decoded."""
        if request.is_answered or time.monotonic() >= request.deadline:
            return  # its connection reports the timeout
        try:
            self._predict(route, request, reply)
        except Exception as error:  # noqa: BLE001 - any error becomes a response
            reply(error_response(error))

    def _predict(self, route: Route, request: HttpRequest, reply: Reply) -> None:
        client_id = request.headers.get(b"x-request-id")
        request_id = self._core.request_id_of(client_id)
        parsed = parse_request(request.body, self._core.limits)
        request.body = b""  # decoded; frees the memory
        target = route.target if client_id is None else route.target._replace(request_id=client_id.decode("latin-1"))

        def done(outcome: Answer | BaseException) -> None:
            try:
                reply(_answered(outcome, request_id, is_rows=parsed.is_rows))
            except Exception as error:  # noqa: BLE001 - any error becomes a response
                reply(error_response(error))

        self._core.ask(
            target, parsed.signature, parsed.columns, deadline=request.deadline, done=done, request_id=request_id
        )


def _answered(outcome: Answer | BaseException, request_id: bytes | None, *, is_rows: bool) -> HttpResponse:
    if not isinstance(outcome, Answer):
        return error_response(outcome)
    version = (b"x-model-version", version_text(outcome.version).encode())
    headers = (version,) if request_id is None else (version, (b"x-request-id", request_id))
    return HttpResponse(200, encode_answer(outcome.outputs, is_rows=is_rows), headers)


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


# They are ``/v1/models/<name>[/versions/<n>|/labels/<label>][/metadata|:predict]``, and for commands
# ``/v1/promotion[/<name>[:<verb>]]``.

Action: TypeAlias = Literal["status", "metadata", "predict", "promotion", "healthz", "readyz"]

_PATH = re.compile(
    r"/v1/models/(?P<name>[^/:]{1,256})"
    r"(?:/versions/(?P<version>[0-9]{1,19})|/labels/(?P<label>[^/:]{1,256}))?"
    r"(?P<action>/metadata|:predict|:classify|:regress)?"
)
_COMMAND = re.compile(r"/v1/promotion(?:/(?P<name>[^/:]{1,256})(?::(?P<verb>[a-z]{1,32}))?)?")
_KEPT_PATHS = 256
"""Number of cached paths, of up to 64 KiB each, the limit of a head."""
_FORM = "/v1/models/<name>[/versions/<number>|/labels/<label>][/metadata|:predict]"


class Route(NamedTuple):
    """Parsed path."""

    action: Action
    target: Target
    method: str
    """Expected HTTP method."""
    verb: str | None = None
    """Verb of a command; None: a status query."""


@lru_cache(maxsize=_KEPT_PATHS)
def parse_path(path: str) -> Route:
    """Parses a path; recent paths are cached."""
    if path in ("/healthz", "/readyz"):
        return Route("healthz" if path == "/healthz" else "readyz", Target(""), "GET")
    command = _COMMAND.fullmatch(path)
    if command is not None:
        return _command(command["name"], command["verb"])
    match = _PATH.fullmatch(path)
    if match is None:
        raise HttpError(404, f"there is nothing at this path; models are at {_FORM}")
    if match["action"] in (":classify", ":regress"):
        raise HttpError(501, f"{match['action'][1:]} is not answered here; use :predict")
    version = None if match["version"] is None else int(match["version"])
    target = Target(match["name"], version, match["label"])
    if match["action"] == ":predict":
        return Route("predict", target, "POST")
    return Route("metadata" if match["action"] else "status", target, "GET")


def _command(name: str | None, verb: str | None) -> Route:
    if verb is not None and verb not in VERBS:
        raise HttpError(404, f"there is no command {verb!r}; commands are: {', '.join(VERBS)}")
    return Route("promotion", Target(name or ""), "GET" if verb is None else "POST", verb)


VERBS = ("label", "canary", "shadow", "rollback", "resume")
_JSON = b"application/json"


def require_commander(client: str | None, headers: Mapping[bytes, bytes], *, knows_callers: bool) -> None:
    """Checks that a client may send commands."""
    if knows_callers:
        return
    if not _is_own_machine(client):
        raise PermissionDeniedError(
            "commands change the answers of all clients, and this server requires no token: it accepts them only from"
            " its own machine; start it with --token_file"
        )
    if b"origin" in headers:
        raise PermissionDeniedError(
            "this server requires no token, and accepts no commands from web pages; start it with --token_file"
        )


def parse_command(body: bytes, headers: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Parses the fields of a command."""
    if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != _JSON:
        raise InvalidArgumentError("a command must have content-type: application/json")
    try:
        fields = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"a command must be JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InvalidArgumentError(f"a command must be a JSON object, got {type(fields).__name__}")
    return fields


def _is_own_machine(client: str | None) -> bool:
    try:
        address = ipaddress.ip_address(client or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
