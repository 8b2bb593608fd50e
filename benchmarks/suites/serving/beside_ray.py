"""Requests per second on one core: our server against Ray Serve, both with the same predictor, alternating."""

from __future__ import annotations

import importlib
import statistics
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.suites.serving.load_client import LoadClient, encoded_http_request
from benchmarks.suites.serving.publishing_process import PublishingProcess
from benchmarks.suites.serving.served_deepfm import CANDIDATES, encoded_request
from benchmarks.suites.serving.served_process import client_and_one_core, running_server
from monolith.cli._bench import machine, ours
from monolith.cli._bench.measurement import Measurement, RowSkippedError, median_ratio, spread
from monolith.serving import Predictor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.cli._bench.setting import Setting

LIMIT = 3.0
_CONNECTIONS = 4
_PORT = 18_437
_SECONDS = 2.0
"""Of a turn, in seconds of the setting."""


def measure(setting: Setting) -> list[Measurement]:
    """Ray's proxy and its replica are processes on the core that our server has in its turn."""
    try:
        importlib.import_module("ray.serve")
    except ImportError as error:
        raise RowSkippedError(f"Ray Serve is not installed: pip install 'ray[serve]' ({error})") from error
    ours.use_threads(1)
    rest = encoded_http_request(encoded_request(0, setting.small_rows))
    mine, theirs = list[float](), list[float]()
    seconds = _SECONDS * setting.seconds
    with (
        machine.scratch_folder(setting.directory, needed_bytes=setting.small_rows * 300) as folder,
        PublishingProcess(setting, folder) as made,
        client_and_one_core() as client,
        _ray_serving(made.export) as peer_port,
        running_server(Predictor(made.export)) as server,
    ):
        for port in (server.port or 0, peer_port):
            client.ask_in_turn(port, rest, 10)
        for _ in range(setting.rounds):
            mine.append(_rate(client, server.port or 0, rest, seconds))
            theirs.append(_rate(client, peer_port, rest, seconds))
    return [
        Measurement(
            row="serving_ray",
            measure=f"REST requests of {CANDIDATES} candidates, one core",
            figure=statistics.median(mine),
            unit="/s",
            peer="Ray Serve",
            peer_figure=statistics.median(theirs),
            ratio=median_ratio(mine, theirs),
            limit=LIMIT,
            note=f"ours {spread(mine)}, Ray {spread(theirs)}; {_CONNECTIONS} connections",
        )
    ]


def _rate(client: LoadClient, port: int, request: bytes, seconds: float) -> float:
    return client.ask_always(port, request, seconds, connections=_CONNECTIONS)


@contextmanager
def _ray_serving(export: str) -> Iterator[int]:
    """A deployment of one replica that answers the same requests; its processes get the core of this one."""
    ray: Any = importlib.import_module("ray")
    serve: Any = importlib.import_module("ray.serve")

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": _PORT})
        deployment: Any = serve.deployment(_Replica, name="ranker", num_replicas=1, max_ongoing_requests=8)
        serve.run(deployment.bind(export), route_prefix="/v1/models/ranker:predict")
        yield _PORT
    finally:
        serve.shutdown()
        ray.shutdown()


class _Replica:
    """Decodes a request, calls the predictor, encodes the response: as our server, by its own functions."""

    def __init__(self, export: str) -> None:
        ours.use_threads(1)
        self._predictor = Predictor(export)

    async def __call__(self, request: Any) -> Any:
        """Answers one request."""
        from starlette.responses import Response  # noqa: PLC0415 - Ray brings it

        from monolith.serving.request import fit  # noqa: PLC0415
        from monolith.serving.server import LimitsConfig  # noqa: PLC0415
        from monolith.serving.server.http.json_request import encode_answer, parse_request  # noqa: PLC0415

        limits = LimitsConfig()
        asked = parse_request(await request.body(), limits)
        signature = self._predictor.signatures[asked.signature]
        columns = fit(asked.columns(signature), signature, max_examples=limits.examples)
        prediction = self._predictor.predict(columns, asked.signature)
        return Response(encode_answer(prediction.outputs, is_rows=asked.is_rows), media_type="application/json")
