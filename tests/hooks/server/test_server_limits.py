"""The controller where nobody says otherwise: two threads, 20 s to end, 10 s for a call, an hour for a save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hooks.server.training import training
from monolith.hooks.server import ControllerClient, server_hook
from monolith.hooks.server.protos import controller_service_pb2 as messages
from monolith.rpc import RpcServer

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


@pytest.mark.parametrize(("given", "timeouts"), [(None, [10, 10, 10, 10, 3600]), (7.0, [7] * 5)])
def test_a_call_has_ten_seconds_and_a_save_an_hour(given: float | None, timeouts: list[float]) -> None:
    asked: list[float] = []

    class Stub:
        def __getattr__(self, method: str) -> Any:
            def call(request: Any, timeout: float) -> Any:
                asked.append(timeout)
                return getattr(messages, f"{method}Response")()

            return call

        def close(self) -> None:
            pass

    with ControllerClient("127.0.0.1:1", timeout_seconds=given) as client:
        client._stub.close()
        client._stub = Stub()  # type: ignore[assignment]
        client.stop_training()
        client.resume_training()
        assert client.get_block_status() == ([], [])
        assert client.get_global_step() == 0
        client.save_checkpoint()
    assert asked == timeouts


def test_two_threads_serve_and_calls_have_twenty_seconds_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []
    graces: list[float] = []

    class Noting(RpcServer):
        def __init__(self, handlers: Any, credentials: Any, **options: Any) -> None:
            made.append(options)
            super().__init__(handlers, credentials, **options)

        def close(self, grace_seconds: float) -> None:
            graces.append(grace_seconds)
            super().close(grace_seconds)

    monkeypatch.setattr(server_hook, "RpcServer", Noting)
    with training(str(tmp_path)):
        pass
    assert [options["num_threads"] for options in made] == [2]
    assert graces == [20]
