"""Both ends of gRPC in one place: calls, statuses and addresses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from monolith.errors import (
    DeadlineExceededError,
    InternalError,
    NotFoundError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
)
from monolith.rpc import (
    ClientCredentials,
    RpcServer,
    ServerCredentials,
    Status,
    UnaryMethod,
    error_of,
    open_channel,
    status_of,
    unary_handler,
)

SECONDS = 60.0
TOKEN = "open sesame"  # noqa: S105


@contextmanager
def served(serve: Callable[[bytes], bytes], credentials: ServerCredentials, **options: Any) -> Iterator[str]:
    """The address of a server of one method."""
    methods = {"Echo": UnaryMethod(lambda request, _: serve(request), None, bytes)}
    handler = unary_handler("test.Service", methods, credentials, prefix="test: ", **options)
    server = RpcServer([handler], credentials, name="test server", num_threads=1)
    port = server.listen("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.close(0.0)
        server.close(0.0)


def echo(address: str, credentials: ClientCredentials | None = None, **texts: Any) -> Any:
    """The answer to a call, or the error of this library."""
    known = credentials or ClientCredentials()
    with open_channel(address, known) as channel:
        try:
            return channel.unary_unary("/test.Service/Echo")(b"hello", timeout=SECONDS, metadata=known.metadata())
        except grpc.RpcError as error:
            raise error_of(error, prefix="there: ", **texts) from error


def raising(error: Exception) -> Callable[[bytes], bytes]:
    def serve(_: bytes) -> bytes:
        raise error

    return serve


def test_a_call_with_the_token_is_answered_and_others_are_not() -> None:
    with served(lambda request: request, ServerCredentials(token=TOKEN)) as address:
        assert echo(address, ClientCredentials(token=TOKEN)) == b"hello"
        with pytest.raises(UnauthenticatedError, match="there: test: the token is wrong or missing"):
            echo(address)


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (NotFoundError("no such row"), NotFoundError, "there: no such row"),
        (NotFoundError(""), NotFoundError, "there: NOT_FOUND"),
        (ZeroDivisionError("by zero"), InternalError, "there: ZeroDivisionError: by zero"),
    ],
)
def test_an_error_of_a_method_is_the_callers(raised: Exception, kind: type[Exception], text: str) -> None:
    with served(raising(raised), ServerCredentials()) as address, pytest.raises(kind, match=f"^{text}$"):
        echo(address)


def test_a_caller_replaces_the_text_of_a_status() -> None:
    texts = {NotFoundError: "look elsewhere", DeadlineExceededError: "late"}
    with (
        served(raising(NotFoundError("no such row")), ServerCredentials()) as address,
        pytest.raises(NotFoundError, match=r"^look elsewhere$"),
    ):
        echo(address, texts=texts)


def test_a_service_converts_its_errors_itself_and_adds_metadata() -> None:
    def status(method: str, error: Exception) -> Status:
        return Status(ResourceExhaustedError.error_code, f"{method}: {error}", (("retry", "7"),))

    with (
        served(raising(ValueError("full")), ServerCredentials(), status=status) as address,
        open_channel(address, ClientCredentials()) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        channel.unary_unary("/test.Service/Echo")(b"", timeout=SECONDS)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.details() == "Echo: full"
    assert dict(caught.value.trailing_metadata())["retry"] == "7"


def test_an_unexpected_error_is_logged_and_an_expected_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    assert status_of(NotFoundError("no such row")) == (NotFoundError.error_code, "no such row", ())
    assert caplog.text == ""
    assert status_of(ZeroDivisionError("by zero")).message == "ZeroDivisionError: by zero"
    assert "by zero" in caplog.text


@pytest.mark.parametrize("credentials", [ServerCredentials, ClientCredentials])
@pytest.mark.parametrize("given", ["tls_certificate", "tls_key"])
def test_a_certificate_and_its_key_are_given_together(credentials: Any, given: str) -> None:
    authorities = {"tls_ca": "ca.pem"} if credentials is ClientCredentials else {}
    with pytest.raises(ValueError, match=r"^credentials: tls_certificate and tls_key are given together$"):
        credentials(**{given: "file.pem"}, **authorities)
    assert credentials(tls_certificate="file.pem", tls_key="key.pem", **authorities).tls_key == "key.pem"


def test_connections_to_a_port_are_limited_and_those_to_a_unix_socket_are_not(tmp_path: Path) -> None:
    for address, is_limited in (("127.0.0.1:0", True), (f"unix:{tmp_path}/socket", False)):
        server = RpcServer([], ServerCredentials(), name="test server", num_threads=1)
        server.listen(address)
        server.start()
        names = [thread.name for thread in threading.enumerate()]
        server.close(0.0)
        assert any(name.startswith("connections-") for name in names) is is_limited


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        server = RpcServer([], ServerCredentials(), name="test server", num_threads=1)
        with pytest.raises(UnavailableError, match=rf"test server: cannot listen on {address}; is the port taken\?"):
            server.listen(address)


def test_a_channel_needs_no_web_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with served(lambda request: request, ServerCredentials()) as address:
        assert echo(address) == b"hello"
