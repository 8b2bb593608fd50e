"""Exports of an estimator, and the function that answers from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import monolith as ml
from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.export.opened import open_export
from monolith.serving import import_saved_model
from monolith.tables.compressors import Fp32
from monolith.testing import ExampleTask
from monolith.train import Estimator, ExportMode, RunnerConfig, Spec

EXAMPLE = ExampleTask().input_fn("train").make(0)
ASKED = {"user": EXAMPLE["user"], "item": EXAMPLE["item"]}


class Exact(ExampleTask):
    """Rows are served as they were trained, items begin with zeros, and heads have names."""

    def build(self) -> None:
        exact = Fp32()
        zeros = ml.initializers.Zeros()
        self.emb = ml.Embeddings(
            {"user": ml.Slot(dim=4, compressor=exact), "item": ml.Slot(dim=4, compressor=exact, initializer=zeros)}
        )
        self.top = torch.nn.Linear(8, 1)

    def model_fn(self, features: Any, mode: Any) -> Spec:
        spec = super().model_fn(features, mode)
        if mode == "predict":
            self.add_extra_output("both", {"score": spec.predictions, "twice": 2 * spec.predictions})
        return spec


@pytest.fixture
def estimator(tmp_path: Path) -> Estimator:
    params = Exact.params()
    params.serving.export_mode = ExportMode.DISTRIBUTED
    config = RunnerConfig(model_dir=str(tmp_path), num_ps=2, is_local=True, skip_zero_embedding_when_serving=True)
    estimator = Estimator(params, config)
    estimator.train(steps=3)
    return estimator


@pytest.mark.slow
def test_an_estimator_exports_parts_and_weights_alone(estimator: Estimator, tmp_path: Path) -> None:
    assert estimator.export_saved_model(example=EXAMPLE, version=3) == f"{tmp_path}/exported_models/entry/3"
    place = estimator.export_saved_model(example=EXAMPLE, dense_only=True, version=4)
    assert place == f"{tmp_path}/exported_models/entry/4"
    assert sorted(path.name for path in (tmp_path / "exported_models").iterdir()) == ["entry", "ps_0", "ps_1", "rows"]
    assert open_export(place).manifest.kind == "dense"
    tables = open_export(f"{tmp_path}/exported_models/entry/3").manifest.stores["emb"]
    assert [table["skip_zero"] for table in tables.values()] == [True] * len(tables)
    expected = estimator.trainer.predict(EXAMPLE)
    with import_saved_model(str(tmp_path / "exported_models")) as call, estimator.import_saved_model() as predictor:
        assert torch.equal(call(ASKED), expected)
        assert predictor.version.export == 4
    later = 4_000_000_000  # of a clock that was set back since
    estimator.export_saved_model(example=EXAMPLE, dense_only=True, version=later)
    place = estimator.export_saved_model(example=EXAMPLE, dense_only=True)
    assert place == f"{tmp_path}/exported_models/entry/{later + 1}", "servers take the highest"


def test_a_function_accepts_names_as_upstream_does(estimator: Estimator, tmp_path: Path) -> None:
    path = str(tmp_path / "exported_models")
    for version in (9, 10):
        estimator.export_saved_model(example=EXAMPLE, version=version)
    expected = estimator.trainer.predict(EXAMPLE)
    with import_saved_model(path, output_name="twice", signature="both") as call:
        assert torch.equal(call(ASKED), 2 * expected)
        with pytest.raises(InvalidArgumentError, match="samples as bytes expected"):
            call(np.array([1]))
    with (
        pytest.raises(InvalidArgumentError, match="it answers with score, twice; give one as output_name"),
        import_saved_model(path, signature="both"),
    ):
        pass
    with (
        pytest.raises(NotFoundError, match="there is no signature 'all', it has both, serving_default"),
        import_saved_model(path, signature="all"),
    ):
        pass
    with (
        pytest.raises(NotFoundError, match="there is no output 'output', it has predictions"),
        import_saved_model(path, output_name="output"),
    ):
        pass
    with pytest.raises(NotFoundError, match="neither an export"), import_saved_model(str(tmp_path / "nowhere")):
        pass
