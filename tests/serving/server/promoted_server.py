"""A server of versions that are known, told by commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from monolith.serving.promotion import Promotion, PromotionConfig
from monolith.serving.server import ModelRegistry, ModelServer, RequestQueueConfig
from serving.server.promoted_models import score
from serving.server.test_rest import Reply, ask

ONE = {"inputs": {"user": [100], "x": [1.0]}}
SLOPES = {1: 1.0, 2: 2.0, 3: 3.0}
SCORES: dict[int, Any] = {version: pytest.approx(score(slope)) for version, slope in SLOPES.items()}
"""What each version answers to `ONE`."""


def publish(exports: Path, folder: Path, version: int) -> None:
    shutil.copytree(exports / str(version), folder / f"{version}.tmp")
    (folder / f"{version}.tmp").rename(folder / str(version))


class Served:
    """A server and what it is told."""

    def __init__(self, path: Path, *, server: dict[str, Any] | None = None, **options: Any) -> None:
        self.registry = ModelRegistry()
        self.promotion = Promotion(self.registry, PromotionConfig(**options))
        try:
            assert self.promotion.add(str(path), name="ranker") == "ranker"
            # A busy machine must not reject requests as overload.
            patient = RequestQueueConfig(max_wait_seconds=60.0)
            self.server = ModelServer(self.registry, **{"queue": patient, **(server or {})})
        except BaseException:
            self.promotion.close()
            self.registry.close()
            raise

    def tell(self, verb: str, **fields: Any) -> Reply:
        return ask(self.server, f"/v1/promotion/ranker:{verb}", fields, content_type="application/json")

    def told(self, verb: str, **fields: Any) -> Any:
        reply = self.tell(verb, **fields)
        assert reply.status == 200, reply.body
        return reply.body

    def status(self) -> Any:
        return ask(self.server, "/v1/promotion/ranker").body["models"]["ranker"]

    def loaded(self) -> list[int]:
        return [entry.version for entry in self.registry.entries("ranker")]

    def answer(self, at: str = "", **headers: str) -> Any:
        reply = ask(self.server, f"/v1/models/ranker{at}:predict", ONE, **headers)
        assert reply.status == 200, reply.body
        return json.loads(reply.headers["x-model-version"])["export"], reply.body["outputs"][0]

    def close(self) -> None:
        self.server.close()
        self.promotion.close()
        self.registry.close()
