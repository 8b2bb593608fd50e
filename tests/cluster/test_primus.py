"""The application master as a real gRPC server, on a Unix socket and on TCP."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from monolith.cluster.protos import app_master_service_pb2 as messages
from monolith.cluster.runtimes import (
    close_channels,
    create_primus_save_point,
    maybe_finish_application,
    maybe_kill_application,
    primus,
)
from monolith.testing import FakeClock

States = messages.CreateSavepointStatusResponse.CreateSavepointState


class Master:
    """Answers with what a test put into ``answers``; a callable is asked, and may abort the call."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.timeouts: list[float] = []
        self.answers: dict[str, Callable[[Any, Any], Any]] = {}

    def handler(self) -> Any:
        service = messages.DESCRIPTOR.services_by_name["AppMasterService"]
        return grpc.method_handlers_generic_handler(
            service.full_name, {method.name: self._handle(method) for method in service.methods}
        )

    def _handle(self, method: Any) -> Any:
        def answer(request: Any, context: Any) -> Any:
            self.requests.append((method.name, request))
            self.timeouts.append(context.time_remaining())
            return self.answers[method.name](request, context)

        request_class = getattr(messages, method.input_type.name)
        answer_class = getattr(messages, method.output_type.name)
        return grpc.unary_unary_rpc_method_handler(answer, request_class.FromString, answer_class.SerializeToString)


@pytest.fixture(params=["unix", "tcp"])
def master(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Master]:
    master = Master()
    pool = ThreadPoolExecutor(4)
    server = grpc.server(pool, handlers=[master.handler()])
    if request.param == "unix":
        socket_path = tmp_path / "am"
        server.add_insecure_port(f"unix:{socket_path}")
        host, port = "unix", str(socket_path)
    else:
        host, port = "127.0.0.1", str(server.add_insecure_port("127.0.0.1:0"))
    monkeypatch.setenv("PRIMUS_AM_RPC_HOST", host)
    monkeypatch.setenv("PRIMUS_AM_RPC_PORT", port)
    server.start()
    yield master
    close_channels()
    server.stop(None).wait()
    pool.shutdown()


@pytest.fixture
def _away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A master that is not there."""
    monkeypatch.setenv("PRIMUS_AM_RPC_HOST", "unix")
    monkeypatch.setenv("PRIMUS_AM_RPC_PORT", str(tmp_path / "nobody"))
    yield
    close_channels()


def refuse(request: Any, context: Any) -> None:
    context.abort(grpc.StatusCode.INTERNAL, "the master is confused")


def test_killing_gives_the_reason_and_time_to_end(master: Master) -> None:
    master.answers["kill"] = lambda request, context: messages.KillResponse()
    assert maybe_kill_application("out of memory") is True
    [(method, request)] = master.requests
    assert method == "kill"
    assert (request.diagnose, request.exit_code) == ("out of memory", 1)
    assert request.graceful_shutdown_timeout_ms.value == 20000
    assert 5 < master.timeouts[0] < 10.5


def test_finishing_notifies_the_master(master: Master) -> None:
    master.answers["succeed"] = lambda request, context: messages.SucceedResponse()
    assert maybe_finish_application() is True
    [(method, request)] = master.requests
    assert method == "succeed"
    assert request.graceful_shutdown_timeout_ms.value == 20000
    assert request.exit_code == 0


def test_a_save_point_is_waited_for(master: Master) -> None:
    clock = FakeClock()
    states = [States.PENDING, States.RUNNING, States.RUNNING, States.SUCCEEDED]
    master.answers["createSavepoint"] = lambda request, context: messages.CreateSavepointResponse(savepoint_id="7")
    master.answers["createSavepointStatus"] = lambda request, context: messages.CreateSavepointStatusResponse(
        create_savepoint_state=states.pop(0)
    )
    assert create_primus_save_point("/save/here", clock=clock) is True
    assert clock.monotonic() == 15
    assert master.requests[0][1].savepoint_dir == "/save/here"
    assert {request.savepoint_restore_id for _, request in master.requests[1:]} == {"7"}
    assert all(5 < timeout < 10.5 for timeout in master.timeouts)


def test_a_save_point_that_fails_is_false(master: Master, caplog: pytest.LogCaptureFixture) -> None:
    master.answers["createSavepoint"] = lambda request, context: messages.CreateSavepointResponse(savepoint_id="7")
    master.answers["createSavepointStatus"] = lambda request, context: messages.CreateSavepointStatusResponse(
        create_savepoint_state=States.FAILED, message="disk full"
    )
    assert create_primus_save_point("/save/here", clock=FakeClock()) is False
    assert "disk full" in caplog.text


def test_a_save_point_that_is_refused_is_false(master: Master, caplog: pytest.LogCaptureFixture) -> None:
    master.answers["createSavepoint"] = lambda request, context: messages.CreateSavepointResponse(
        code=5, message="one is running"
    )
    assert create_primus_save_point("/save/here") is False
    assert "refused with code 5: one is running" in caplog.text
    assert [method for method, _ in master.requests] == ["createSavepoint"]


def test_a_master_that_fails_is_logged_and_never_raised(master: Master, caplog: pytest.LogCaptureFixture) -> None:
    master.answers = dict.fromkeys(["kill", "succeed", "createSavepoint"], refuse)
    assert maybe_kill_application("reason") is False
    assert maybe_finish_application() is None
    assert create_primus_save_point("/save/here") is False
    assert caplog.text.count("the master is confused") >= 3


@pytest.mark.usefixtures("_away")
def test_an_unavailable_master_is_logged_and_never_raised() -> None:
    assert maybe_kill_application("reason") is False
    assert maybe_finish_application() is None
    assert create_primus_save_point("/save/here") is False


@pytest.mark.parametrize("variables", [{}, {"PRIMUS_AM_RPC_HOST": "h"}, {"PRIMUS_AM_RPC_PORT": "1"}])
def test_without_a_master_no_request_is_sent(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.INFO):
        assert maybe_finish_application() is None
        assert create_primus_save_point("/save/here") is None
        assert caplog.text == ""
        assert maybe_kill_application("reason") is False
    assert "Current framework doesn't support kill. Ignore killing..." in caplog.text


def test_one_channel_per_address_is_shared_by_all_threads(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    master.answers["kill"] = lambda request, context: messages.KillResponse()
    opened: list[str] = []
    together = threading.Barrier(4)
    insecure_channel = grpc.insecure_channel

    def open_channel(addr: str, options: Any) -> Any:
        opened.append(addr)
        return insecure_channel(addr, options)

    def kill() -> bool:
        together.wait(20)
        return maybe_kill_application("all at once")

    monkeypatch.setattr(grpc, "insecure_channel", open_channel)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: kill(), range(4)))
    assert len(opened) == 1
    close_channels()
    close_channels()
    assert maybe_kill_application("once more")
    assert len(opened) == 2


def test_an_ipv6_master_is_put_in_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIMUS_AM_RPC_HOST", "fd00::1")
    monkeypatch.setenv("PRIMUS_AM_RPC_PORT", "99")
    assert primus._get_primus_am_host() == "[fd00::1]:99"


@pytest.mark.usefixtures("_away")
def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_grpc(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", no_grpc)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'monolith-torch\[primus\]'"):
        maybe_finish_application()


@pytest.mark.slow
def test_the_modules_match_the_proto_files(project_root: Path) -> None:
    command = [sys.executable, str(project_root / "scripts" / "update-protos"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_messages_have_the_numbers_of_the_scheduler() -> None:
    def numbers(message: Any) -> dict[str, int]:
        return {field.name: field.number for field in message.DESCRIPTOR.fields}

    assert numbers(messages.KillRequest) == {"exit_code": 1, "diagnose": 2, "graceful_shutdown_timeout_ms": 3}
    assert numbers(messages.SucceedRequest) == numbers(messages.KillRequest)
    assert numbers(messages.CreateSavepointResponse) == {"code": 1, "message": 2, "savepoint_id": 3}
    assert numbers(messages.PSInfo) == {"ip": 1, "ports": 2, "shard_id": 3, "name": 4}
    assert dict(States.items()) == {"PENDING": 0, "RUNNING": 1, "SUCCEEDED": 2, "FAILED": 3}
    request = messages.KillRequest(exit_code=1, diagnose="x")
    assert request.SerializeToString() == b"\x08\x01\x12\x01x"
