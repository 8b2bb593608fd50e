"""How CUDA tensors change threads, shown with doubles where there is no GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from monolith.data.prefetch.staging import SideStreams, StagedTensors


class FakeStream:
    def __init__(self, log: list[str], name: str) -> None:
        self._log, self.name = log, name

    def record_event(self) -> str:
        self._log.append(f"{self.name} records")
        return f"event of {self.name}"

    def wait_event(self, event: str) -> None:
        self._log.append(f"{self.name} waits for {event}")

    def wait_stream(self, other: FakeStream) -> None:
        self._log.append(f"{self.name} waits for {other.name}")


class FakeCudaTensor:
    is_cuda = True

    def __init__(self, log: list[str], device: str) -> None:
        self._log, self.device = log, torch.device(device)

    def record_stream(self, stream: FakeStream) -> None:
        self._log.append(f"tensor on {self.device} is used by {stream.name}")

    def to(self, *_: object, **__: object) -> FakeCudaTensor:
        return self


class FakeHostTensor:
    is_cuda = False
    device = torch.device("cpu")

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def pin_memory(self) -> FakeHostTensor:
        return self

    def to(self, device: torch.device, *, non_blocking: bool) -> FakeCudaTensor:
        assert non_blocking
        return FakeCudaTensor(self._log, str(device))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens on the streams; `who` in the log is whose current stream is used."""
    log: list[str] = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream(log, f"{log[0]} on {device}"))
    return log


def test_the_stream_of_the_consumer_waits_for_that_of_the_producer(log: list[str]) -> None:
    tensors: list[Any] = [torch.ones(1), FakeCudaTensor(log, "cuda:0"), FakeCudaTensor(log, "cuda:0")]
    log.append("producer")
    staged = StagedTensors(tensors)
    assert log[1:] == ["producer on cuda:0 records"], "one event for a device, not one for a tensor"
    log[:] = ["consumer"]
    assert staged.receive() == tensors
    assert log[1:] == [
        "consumer on cuda:0 waits for event of producer on cuda:0",
        "tensor on cuda:0 is used by consumer on cuda:0",
        "tensor on cuda:0 is used by consumer on cuda:0",
    ]


def test_each_gpu_has_its_own_event(log: list[str]) -> None:
    tensors: list[Any] = [FakeCudaTensor(log, "cuda:0"), FakeCudaTensor(log, "cuda:1")]
    log.append("producer")
    staged = StagedTensors(tensors)
    assert sorted(log[1:]) == ["producer on cuda:0 records", "producer on cuda:1 records"]
    log[:] = ["consumer"]
    staged.receive()
    assert "consumer on cuda:1 waits for event of producer on cuda:1" in log
    assert "tensor on cuda:1 is used by consumer on cuda:1" in log


def test_tensors_on_the_cpu_need_nothing(log: list[str]) -> None:
    log.append("anyone")
    tensor = torch.ones(1)
    assert StagedTensors([tensor]).receive()[0] is tensor
    assert SideStreams().stage([tensor], torch.device("cpu")).receive()[0] is tensor
    assert log == ["anyone"]


def test_a_call_runs_on_one_side_stream_as_soon_as_cuda_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    current: list[str] = ["default"]
    seen: list[str] = []
    in_use = False

    def make_stream(index: int) -> str:
        made.append(index)
        return f"side {index}"

    @contextlib.contextmanager
    def use(stream: str) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: in_use)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "Stream", make_stream)
    monkeypatch.setattr(torch.cuda, "stream", use)
    streams = SideStreams()
    streams.run(lambda: seen.append(current[-1]))
    in_use = True
    streams.run(lambda: seen.append(current[-1]))
    streams.run(lambda: seen.append(current[-1]))
    assert seen == ["default", "side 3", "side 3"]
    assert made == [3]


def test_copies_from_the_host_do_not_wait_for_the_model(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", lambda index: FakeStream(log, f"side {index}"))
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    log.append("model")
    streams, device = SideStreams(), torch.device("cuda:0")
    tensors: list[Any] = [FakeHostTensor(log)]
    staged = streams.stage(tensors, device)
    assert log == ["model", "model on cuda:0 records"]
    assert [str(each.device) for each in staged.tensors] == ["cuda:0"]
    streams.stage([*tensors, FakeCudaTensor(log, "cuda:0")], device)  # type: ignore[list-item]
    assert "side 0 waits for model on 0" in log, "what is there already may still be in the making"
