"""Responses of a complete server on one core: throughput and latency, while it follows a log, and under overload."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.suites.serving import server as serving_server
from benchmarks.suites.serving.cpu_turns import take_cpu_turns
from benchmarks.suites.serving.load_client import encoded_http_request
from benchmarks.suites.serving.publishing_process import PublishingProcess
from benchmarks.suites.serving.served_deepfm import CANDIDATES, encoded_request
from benchmarks.suites.serving.served_process import client_and_one_core, running_server
from monolith.cli._bench import machine, ours
from monolith.cli._bench.measurement import Measurement, Sense, spread, tell
from monolith.serving import Predictor
from monolith.serving.server import RequestQueueConfig

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.suites.serving.load_client import Load, LoadClient
    from monolith.cli._bench.setting import Setting

PARTS_LIMIT = 0.85
P99_LIMIT, FOLLOWING_LIMIT = 4.0, 1.5
GOODPUT_LIMIT, ACCEPTED_LIMIT, REFUSALS_LIMIT_MS = 0.9, 2.0, 20.0
_SECONDS = 5.0
"""Of each load, in seconds of the setting."""
_CONNECTIONS = 4
_MAX_WAIT_SECONDS = 0.02
"""What a request may wait, so that those that are answered are not late."""


class _Loads(NamedTuple):
    predict_us: list[float]
    most: list[float]
    """Answers a second of a server that always has something to do."""
    half: Load
    full: Load
    following: Load
    overload: Load


def measure(setting: Setting) -> list[Measurement]:
    """Measures the DeepFM of the other rows, ExampleBatch over REST; the client process has its own cores."""
    ours.use_threads(1)
    with machine.scratch_folder(setting.directory, needed_bytes=setting.small_rows * 300) as folder:
        found = _measure_loads(setting, folder)
    _, beside, *_ = serving_server.measure(
        setting
    )  # at the end: it leaves gRPC's threads, and nothing forks after them
    return [*_rates(found, float(beside.figure or 0.0)), *_delays(found), *_overload(found)]


def _measure_loads(setting: Setting, folder: Path) -> _Loads:
    request = encoded_request(0, setting.small_rows)
    rest = encoded_http_request(request)
    seconds = _SECONDS * setting.seconds
    with PublishingProcess(setting, folder) as publishing, client_and_one_core() as client:
        predictor = Predictor(publishing.export)
        predict_us = take_cpu_turns({"predict": lambda _: predictor.predict(request)}, setting)["predict"]
        with running_server(
            predictor, queue=RequestQueueConfig(max_wait_seconds=seconds)
        ) as server:  # which refuses nothing
            port = server.port or 0
            client.ask_in_turn(port, rest, 20)
            most = [client.ask_always(port, rest, seconds / 3, connections=_CONNECTIONS) for _ in range(3)]
            rate = statistics.median(most)
        rules = RequestQueueConfig(max_wait_seconds=_MAX_WAIT_SECONDS)
        with running_server(Predictor(publishing.export), queue=rules) as server:
            port = server.port or 0
            client.ask_in_turn(port, rest, 20)
            half = _load(client, port, rest, 0.5 * rate, seconds, "half of what it can answer")
            full = _load(client, port, rest, 0.9 * rate, seconds, "0.9 of what it can answer")
            overload = _load(client, port, rest, 3.0 * rate, seconds, "three times what it can answer")
        follower = Predictor(publishing.export, follow=publishing.log)
        follower.wait_ready()
        with running_server(follower, queue=rules) as server:
            client.ask_in_turn(server.port or 0, rest, 20)
            publishing.begin()
            following = _load(client, server.port or 0, rest, 0.5 * rate, seconds, "half, following a log")
            publishing.end()
    return _Loads(predict_us, most, half, full, following, overload)


def _load(client: LoadClient, port: int, request: bytes, rate: float, seconds: float, what: str) -> Load:
    time.sleep(0.2)  # what waited of the load before is answered
    found = client.ask_on_time(port, request, rate, seconds)
    tell(f"    {what}: {found}; the client was late by {found.latest:.2g} ms (p99)")
    return found


def _rates(found: _Loads, beside_us: float) -> list[Measurement]:
    predict_us = statistics.median(found.predict_us)
    allowed = 1e6 / (predict_us + beside_us)
    return [
        Measurement(
            row="serving_load",
            measure=f"REST requests of {CANDIDATES} candidates, one core",
            figure=statistics.median(found.most),
            unit="/s",
            peer="what its parts allow",
            peer_figure=allowed,
            ratio=statistics.median(found.most) / allowed,
            limit=PARTS_LIMIT,
            note=f"predict {predict_us:.0f} us, server {beside_us:.0f} us; {spread(found.most)}",
        )
    ]


def _delays(found: _Loads) -> list[Measurement]:
    return [
        Measurement(
            row="serving_load",
            measure="p99 at half of that load",
            figure=found.half.p99,
            unit="ms",
            peer="median",
            peer_figure=found.half.p50,
            ratio=found.half.p99 / found.half.p50,
            limit=P99_LIMIT,
            sense=Sense.AT_MOST,
            note=str(found.half),
        ),
        Measurement(
            row="serving_load",
            measure="the same while a log of an increment every 100 ms is followed",
            figure=found.following.p99,
            unit="ms",
            peer="without",
            peer_figure=found.half.p99,
            ratio=found.following.p99 / found.half.p99,
            limit=FOLLOWING_LIMIT,
            sense=Sense.AT_MOST,
            note=str(found.following),
        ),
    ]


def _overload(found: _Loads) -> list[Measurement]:
    return [
        Measurement(
            row="serving_load",
            measure="three times too much load: answers",
            figure=found.overload.answered,
            unit="/s",
            peer="0.9 of the load that can be answered",
            peer_figure=found.full.answered,
            ratio=found.overload.answered / found.full.answered,
            limit=GOODPUT_LIMIT,
            note=str(found.overload),
        ),
        Measurement(
            row="serving_load",
            measure="three times too much load: p99 of answers",
            figure=found.overload.p99,
            unit="ms",
            peer="0.9 of the load that can be answered",
            peer_figure=found.full.p99,
            ratio=found.overload.p99 / found.full.p99,
            limit=ACCEPTED_LIMIT,
            sense=Sense.AT_MOST,
            note=str(found.full),
        ),
        Measurement(
            row="serving_load",
            measure="three times too much load: p99 of refusals",
            figure=found.overload.refused_p99,
            unit="ms",
            limit=REFUSALS_LIMIT_MS,
            sense=Sense.AT_MOST,
            note=f"{found.overload.refused} refused",
        ),
    ]
