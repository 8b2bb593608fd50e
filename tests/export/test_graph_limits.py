"""A graph that would fill the memory, count without end or write to weights is refused before it computes anything."""

from __future__ import annotations

import json
import resource
import shutil
import time
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import monolith as ml
from export.forged_graphs import GRAPH, full, insert, node, reseal, size, tensor
from monolith.errors import DataLossError, InvalidArgumentError, OpError
from monolith.export import allowed_operations
from monolith.export.graph_limits import InputShape, require_bounded_graph
from monolith.export.opened import open_export
from monolith.serving import Predictor
from monolith.train import Spec
from serving.small_models import make_batch, trained

SIZE_OF_BATCH = "torch.ops.aten.sym_size.int"
EXAMPLES = InputShape("examples", (8,), torch.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(trained(2).export(str(tmp_path_factory.mktemp("exported")), example=make_batch(0)))


def rows_of(document: Any) -> Any:
    """The first input that has a row for each example."""
    places = zip(document["inputs"], document["graph_module"]["graph"]["inputs"], strict=True)
    return next(place for (kind, _), place in places if kind == "rows")


def batch_size(document: Any, out: str = "b") -> Any:
    return node(SIZE_OF_BATCH, out, rows_of(document), {"as_int": 0}, result=size(out))


def squared(count: int) -> list[Any]:
    """b, b ** 2, b ** 4, ..."""
    names = ["b", *(f"m{place}" for place in range(count))]
    return [node("_operator.mul", new, size(old), size(old), result=size(new)) for old, new in pairwise(names)]


def _unsafe_flag(document: Any) -> list[Any]:
    return [
        full("data", 4, 4),
        node(
            "torch.ops.aten.batch_norm.default",
            "bn",
            tensor("data"),
            {"as_none": True},
            {"as_none": True},
            {"as_none": True},
            {"as_none": True},
            {"as_bool": True},
            {"as_float": 0.1},
            {"as_float": 0.1},
            {"as_bool": False},
        ),
    ]


def _short_statistics(document: Any) -> list[Any]:
    return [
        full("data", 4, 4),
        full("mean", 1),
        node(
            "torch.ops.aten._native_batch_norm_legit_no_training.default",
            "bn",
            tensor("data"),
            {"as_none": True},
            {"as_none": True},
            tensor("mean"),
            tensor("mean"),
            {"as_float": 0.1},
            {"as_float": 0.1},
        ),
    ]


def _write(document: Any) -> list[Any]:
    weight = document["graph_module"]["graph"]["inputs"][0]
    flat = node("torch.ops.aten.view.default", "flat", weight, {"as_ints": [-1]})
    return [flat, node("torch.ops.aten.zero_.default", "wiped", tensor("flat"))]


FORGED: dict[str, tuple[Any, str]] = {
    "6 GB": (lambda _: [full("big", 1500, 1000, 1000)], r"with 2 examples it takes more than \d+ bytes"),
    "an expanded number": (
        lambda _: [full("one", 1), node("torch.ops.aten.expand.default", "e", tensor("one"), {"as_ints": [1 << 33]})],
        "it takes more than",
    ),
    "a number of more than 64 bits": (
        lambda document: [
            batch_size(document),
            *squared(70),
            node("torch.ops.aten.full.default", "x", {"as_sym_ints": [{"as_name": "m69"}]}, {"as_float": 0.0}),
        ],
        "more than 64 bits",
    ),
    "sizes that are small for some numbers of examples": (
        lambda document: [
            batch_size(document),
            node("_operator.mod", "r", size("b"), {"as_int": 2}, result=size("r")),
            node("torch.ops.aten.full.default", "x", {"as_sym_ints": [{"as_name": "r"}]}, {"as_float": 0.0}),
        ],
        "does not grow evenly",
    ),
    "the cube of the examples": (
        lambda document: [
            batch_size(document),
            node(
                "torch.ops.aten.full.default",
                "x",
                {"as_sym_ints": [{"as_name": "b"}, {"as_name": "b"}, {"as_name": "b"}]},
                {"as_float": 0.0},
            ),
        ],
        "it takes more than",
    ),
    "inside an operation": (
        lambda _: [
            full("x", 8192, 1),
            full("y", 8192),
            node("torch.ops.aten.cosine_similarity.default", "e", tensor("x"), tensor("y"), {"as_int": 1}),
        ],
        "it takes more than",
    ),
    "training": (_unsafe_flag, "training=True, which no export has"),
    "statistics that are too short": (_short_statistics, "a batch norm of"),
    "writes to weights": (_write, "changes what the graph is given"),
    "a value that is defined twice": (
        lambda document: [full(document["graph_module"]["graph"]["nodes"][0]["name"], 1)],
        "is defined twice",
    ),
    "a value that nothing defines": (
        lambda _: [node("torch.ops.aten.neg.default", "x", tensor("nothing"))],
        "used before it is defined",
    ),
    "a tensor elsewhere": (
        lambda _: [node("torch.ops.aten.zeros.default", "x", {"as_ints": [1]}, device={"as_device": {"type": "cuda"}})],
        "an export is for the CPU",
    ),
    "a sparse tensor": (
        lambda _: [node("torch.ops.aten.zeros.default", "x", {"as_ints": [1]}, layout={"as_layout": 1})],
        "of layout 1",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_graph_is_refused_in_little_memory_and_time(folder: Path, tmp_path: Path, name: str) -> None:
    make, told = FORGED[name]
    shutil.copytree(folder, tmp_path / "1")
    document = json.loads((folder / GRAPH).read_text())
    insert(document, make(document))
    reseal(tmp_path / "1", document)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(OpError, match=told):
        Predictor(str(tmp_path / "1")).close()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB
    assert time.monotonic() - began < 30


def test_a_graph_with_more_operations_is_served(folder: Path, tmp_path: Path) -> None:
    """The forgeries above are refused for what they say, not for being changed."""
    shutil.copytree(folder, tmp_path / "1")
    document = json.loads((folder / GRAPH).read_text())
    insert(document, [batch_size(document), full("x", 3)])
    reseal(tmp_path / "1", document)
    with Predictor(str(tmp_path / "1")) as predictor:
        assert predictor.version.export == json.loads((folder / "manifest.json").read_text())["version"]


@pytest.mark.slow
def test_a_trial_reports_a_graph_that_runs_out_of_memory_and_no_other_failure(folder: Path, tmp_path: Path) -> None:
    refuses_rows = [full("one", 1), node("torch.ops.aten.view.default", "two", tensor("one"), {"as_ints": [2]})]
    for name, forged, told in (
        ("large", [full("big", 1 << 50)], pytest.raises(MemoryError)),
        ("refuses", refuses_rows, nullcontext()),
    ):
        shutil.copytree(folder, tmp_path / name)
        document = json.loads((folder / GRAPH).read_text())
        insert(document, forged)
        reseal(tmp_path / name, document)
        opened = open_export(str(tmp_path / name))
        with told:
            opened.try_rows("serving_default", opened.graph("serving_default"), opened.weights(), 1)


class Segments(nn.Module):
    def forward(self, rows: Any) -> Any:
        return torch.segment_reduce(rows, "sum", lengths=torch.full(rows.shape[:1], 1), axis=0).sum(1)  # here


class OfUser(ml.Task):
    """Uses an operation that servers refuse."""

    def build(self) -> None:
        self.emb = ml.Embeddings({"user": ml.Slot(dim=2)})
        self.head = Segments()

    def input_fn(self, mode: Any) -> Any:
        return [{"user": torch.tensor([1, 2, 3])}] * 2

    def model_fn(self, features: Any, mode: Any) -> Spec:
        rows = self.emb(features)["user"]
        score = self.score(rows) if mode == "predict" else rows.sum(1)
        return Spec(score.sum(), predictions=score)

    def score(self, rows: Any) -> Any:
        return self.head(rows)


class Large(OfUser):
    """Computes more than its weights and inputs account for."""

    def score(self, rows: Any) -> Any:
        return rows.sum(1) + torch.zeros(1 << 28).sum()


@pytest.mark.slow
def test_the_writer_refuses_what_servers_would_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"test_graph_limits\.py:\d+ \(.*# here\).*aten\.segment_reduce"
    ) as e:
        trained(1, OfUser).export(str(tmp_path / "out"))
    assert "allow_operations('aten.segment_reduce')" in e.value.message
    with pytest.raises(InvalidArgumentError, match="more than its weights and inputs account for; no server"):
        trained(1, Large).export(str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_user_allows_an_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowed_operations, "_by_user", set())
    ml.serving.allow_operations("aten.segment_reduce")
    trainer = trained(1, OfUser)
    path = trainer.export(str(tmp_path / "out"))
    with Predictor(path) as predictor:
        assert predictor.predict({"user": [1, 2]}).outputs["predictions"].shape == (2,)
    monkeypatch.setattr(allowed_operations, "_by_user", set())
    with pytest.raises(OpError, match="segment_reduce"):
        Predictor(path)
    with pytest.raises(InvalidArgumentError, match=r"like 'aten\.NAME'"):
        ml.serving.allow_operations("os.system")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ x.T,  # the square of the examples
        lambda x: torch.cat([x, x.new_zeros(x.shape[0], 3)], 1),
        lambda x: nn.functional.pad(x, (1, 2)),
        lambda x: torch.arange(x.shape[0]).unsqueeze(1) + x,
        lambda x: x.view(x.shape[0], 2, -1).flatten(1),
        lambda x: torch.einsum("bi,bj->bij", x, x),
        lambda x: x.clone().relu_(),
    ],
)
def test_bounds_leave_models_alone(function: Any) -> None:
    require_bounded_graph(_graph_of(function), [EXAMPLES], origin="x")


def test_the_bytes_of_all_results_are_bounded_as_documented() -> None:
    """As docs/formats/export.md states it, for 2 examples of 8 floats and a weight of 1024 floats."""
    limit = (64 << 20) + 16 * 4096 + 2 * (1 << 20) + 4096 * 64
    inputs: list[InputShape | torch.Tensor] = [EXAMPLES, torch.empty(1024)]
    for size_of, told in ((limit, None), (limit + 1, f"with 2 examples it takes more than {limit} bytes")):
        graph = torch.fx.symbolic_trace(lambda x, _weight, n=size_of: x.new_empty((n,), dtype=torch.uint8))
        with nullcontext() if told is None else pytest.raises(DataLossError, match=told):
            require_bounded_graph(graph, inputs, origin="x")


def test_sizes_that_do_not_grow_evenly() -> None:
    for function in (lambda x: x[:500], lambda x: x[::2], lambda x: torch.zeros(x.shape[0] % 7)):
        with pytest.raises(DataLossError, match="does not grow evenly"):
            require_bounded_graph(
                torch.fx.symbolic_trace(_NoLoop(function)), [InputShape("examples", (8,), torch.float32)], origin="x"
            )


class _NoLoop(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def _graph_of(function: Any) -> Any:
    shapes = ({0: torch.export.Dim("b")},)
    return torch.export.export(_NoLoop(function), (torch.ones(3, 8),), dynamic_shapes=(shapes[0],)).graph_module
