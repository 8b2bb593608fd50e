"""A connection to a server names its own state in the errors of calls that meet its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from monolith.errors import CancelledError, FailedPreconditionError, OpError, UnavailableError
from monolith.rpc import ClientCredentials
from monolith.rpc.channel import ControlChannel
from monolith.rpc.protos import coordinator_pb2 as messages


class ClosedMeanwhile:
    """A method of a channel that another thread closes between the check of the call and its start."""

    def __init__(self, channel: ControlChannel, method: Any, moved_to: str | None) -> None:
        self._channel, self._method, self._moved_to = channel, method, moved_to

    def __call__(self, *args: Any, **options: Any) -> Any:
        self._channel.close(moved_to=self._moved_to)
        return self._method(*args, **options)

    def future(self, *args: Any, **options: Any) -> Any:
        self._channel.close(moved_to=self._moved_to)
        return self._method.future(*args, **options)


@pytest.mark.parametrize(
    ("moved_to", "kind", "message"),
    [
        (None, FailedPreconditionError, "its PsCluster was closed; make another one"),
        ("127.0.0.1:2", UnavailableError, "it is at 127.0.0.1:2 now; ask again"),
    ],
)
@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("Renew", lambda channel: channel.begin("Renew", messages.RenewRequest(), 1.0)),
        ("Watch", lambda channel: channel.open_stream("Watch", messages.SeatRequest())),
    ],
)
def test_a_call_on_a_channel_closed_by_another_thread_raises_the_error_of_the_channel(
    name: str, start: Callable[[ControlChannel], Any], moved_to: str | None, kind: type[OpError], message: str
) -> None:
    channel = ControlChannel(0, "127.0.0.1:1", ClientCredentials())
    channel._methods[name] = ClosedMeanwhile(channel, channel._methods[name], moved_to)
    with pytest.raises(kind, match=message):
        start(channel)


def test_the_result_of_a_call_that_the_caller_cancelled_is_an_error_that_names_it() -> None:
    channel = ControlChannel(0, "127.0.0.1:1", ClientCredentials())
    call = channel.begin("Renew", messages.RenewRequest(), 60.0)
    call.cancel()
    with pytest.raises(CancelledError, match=r"^parameter server 0 at 127\.0\.0\.1:1: Renew was cancelled$"):
        call.result()
    channel.close()
