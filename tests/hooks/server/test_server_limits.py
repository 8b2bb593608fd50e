"""The controller where nobody says otherwise: two threads, 20 s to end, 10 s for a call, an hour for a save."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hooks.server.training import training
from monolith.hooks.server import ControllerClient, server_hook
from monolith.hooks.server.protos import controller_service_pb2 as messages

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
    threads: list[int] = []
    graces: list[float] = []

    class Noting(ThreadPoolExecutor):
        def __init__(self, max_workers: int, **options: Any) -> None:
            threads.append(max_workers)
            super().__init__(max_workers, **options)

    class Server:
        def __init__(self, real: Any) -> None:
            self.real = real

        def stop(self, grace: float) -> Any:
            graces.append(grace)
            return self.real.stop(grace)

    monkeypatch.setattr(server_hook, "ThreadPoolExecutor", Noting)
    with training(str(tmp_path)) as run:
        run.hook._server = Server(run.hook._server)
    assert (threads, graces) == ([2], [20])
