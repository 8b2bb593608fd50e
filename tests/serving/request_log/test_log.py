"""The request log beside the server: it draws by request, and loses and counts rather than waits or fails."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from monolith.errors import NotFoundError
from monolith.observe import MetricClient, MetricRecorder
from monolith.serving.request_log import RequestLog, RequestLogConfig, is_sampled, log, read_requests
from monolith.serving.request_log.log import request_id_of
from serving.request_log.answered_requests import answered, plain

PATIENCE_SECONDS = 60.0


class HeldSink:
    """Writes nothing until it is let go."""

    def __init__(self, told: Any) -> None:
        self._told = told
        self.entered, self.let_go = threading.Event(), threading.Event()

    def append(self, _: bytes, records: list[bytes]) -> None:
        self.entered.set()
        self.let_go.wait(PATIENCE_SECONDS)
        self._told(len(records), None)

    def flush(self) -> None: ...

    def close(self, _: float) -> None: ...


class Logged:
    """A log with a recorder of its own."""

    def __init__(self, **options: Any) -> None:
        self.recorder = MetricRecorder()
        config = RequestLogConfig(**{"share": 1.0, **options})
        self.log = RequestLog(config, metrics=MetricClient("s", recorder=self.recorder))

    def count(self, name: str, **tags: str) -> float:
        try:
            return self.recorder.counter(f"s.{name}", tags)
        except NotFoundError:
            return 0


def test_requests_that_were_answered_can_be_read_back(tmp_path: Path) -> None:
    logged = Logged(place=str(tmp_path))
    for number in range(5):
        logged.log.answered(plain(number, examples=3))
    logged.log.close()
    found = list(read_requests(str(tmp_path)))
    assert [each.request_id for each in found] == [b"r%d" % number for number in range(5)]
    assert [each.number for each in found[4].examples] == [0, 1, 2]
    assert found[4].examples[2].outputs["predictions"].tolist() == [torch.tensor(402 / 1000).item()]
    assert (found[0].model, found[0].signature, found[0].export) == ("ranker", "serving_default", 7)
    assert logged.count("request_log_records") == 15


def test_a_share_is_drawn_by_request_id_alone() -> None:
    ids = [b"request-%d" % number for number in range(20_000)]
    drawn = {request for request in ids if is_sampled(request, 0.01)}
    assert len(drawn) == 220
    assert {request for request in ids if is_sampled(request, 0.1)} > drawn
    assert all(is_sampled(request, 1.0) for request in ids)


def test_the_parts_of_a_request_are_all_logged_or_none_is(tmp_path: Path) -> None:
    logged = Logged(place=str(tmp_path), share=0.3)
    for number in range(100):
        for _ in range(2):
            logged.log.answered(plain(number))
    logged.log.close()
    found = [each.request_id for each in read_requests(str(tmp_path))]
    wanted = [b"r%d" % number for number in range(100) if is_sampled(b"r%d" % number, 0.3)]
    assert found == [each for each in wanted for _ in range(2)]
    assert 15 < len(wanted) < 45


def test_ids_are_the_clients_own_unless_they_are_none() -> None:
    assert request_id_of(b"abc") == b"abc"
    assert len({request_id_of(None), request_id_of(b""), request_id_of(b"x" * 257)}) == 3
    assert all(len(request_id_of(given)) == 32 for given in (None, b"", b"x" * 257))


def test_a_stuck_writer_costs_records_and_delays_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log, "RolledFiles", lambda _, told, **__: HeldSink(told))
    logged = Logged(place=str(tmp_path), queue_bytes=10_000)
    sink: Any = logged.log._sink
    logged.log.answered(plain(0))
    assert sink.entered.wait(PATIENCE_SECONDS)
    with caplog.at_level(logging.WARNING):
        for number in range(1, 1000):
            logged.log.answered(plain(number))  # would hang here
    lost = logged.count("request_log_dropped", reason="queue_full")
    assert lost > 0
    assert len(caplog.records) == 1
    sink.let_go.set()
    logged.log.close()
    assert logged.count("request_log_records") + lost == 2000


def test_a_writer_that_never_returns_does_not_block_the_close_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "RolledFiles", lambda _, told, **__: HeldSink(told))
    monkeypatch.setattr(log, "_CLOSE_SECONDS", 0.0)
    monkeypatch.setattr(log, "_IDLE_SECONDS", 0.01)
    logged = Logged(place=str(tmp_path))
    sink: Any = logged.log._sink
    logged.log.answered(plain(0))
    assert sink.entered.wait(PATIENCE_SECONDS)
    logged.log.answered(plain(1))
    logged.log.close()
    assert logged.count("request_log_dropped", reason="closed") == 2
    logged.log.answered(plain(2))
    assert logged.count("request_log_dropped", reason="queue_full") == 2
    sink.let_go.set()


def test_what_cannot_be_encoded_is_counted_and_the_next_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logged = Logged(place=str(tmp_path))
    broken = answered(b"r", {"user": torch.tensor([1])}, {"p": torch.ones(1)})._replace(
        columns={"examples": [b"\xff\xff"]}, inputs={}
    )
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            logged.log.answered(broken)
        logged.log.answered(plain(1)._replace(columns={"user": 7}))  # type: ignore[dict-item]  # what no server hands over
        logged.log.answered(plain(2))
        logged.log.close()
    assert logged.count("request_log_dropped", reason="unreadable") == 5
    assert logged.count("request_log_records") == 2
    assert len(caplog.records) == 1


def test_trouble_is_reported_once_and_so_is_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logged = Logged(place=str(tmp_path))
    told = logged.log._note_outcome
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            told(2, OSError("no space"))
        told(1, None)
        told(1, None)
        told(2, OSError("no space"))
    logged.log.close()
    said = [record.getMessage() for record in caplog.records]
    assert [text.split(":")[1].split()[0] for text in said] == ["2", "records", "2"]
    assert "written again" in said[1]
    assert logged.count("request_log_dropped", reason="not_written") == 8


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"share": 0.0}, "share must be above 0 and at most 1, got 0"),
        ({"share": 1.5}, "share must be above 0 and at most 1, got 1.5"),
        ({"share": float("nan")}, "share must be above 0 and at most 1, got nan"),
        ({"place": "s3://bucket/log"}, "place must be a folder of this machine or kafka://HOST:PORT/TOPIC"),
        ({"place": ""}, "place must be a folder"),
        ({"place": "kafka://host:1"}, "a topic is written kafka://HOST:PORT"),
        ({"kafka": {"a": "b"}}, "kafka has settings, but 'log' is no topic"),
        ({"roll_bytes": 0}, "roll_bytes must be > 0"),
        ({"item_column": ""}, "item_column must be the name of a column"),
    ],
)
def test_configs_that_cannot_work_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Exception, match=sentence):
        RequestLogConfig(**{"place": "log", **options})
