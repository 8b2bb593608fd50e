"""A graph from outside is checked before torch is given it: what could run anything is refused, and nothing runs."""

from __future__ import annotations

import copy
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import monolith as ml
from monolith.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    UnimplementedError,
)
from monolith.export.graph_file import graph_from_bytes
from monolith.export.opened import open_export
from monolith.files import seal
from monolith.train import Spec
from serving.small_models import make_batch, trained


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported")
    return Path(trained(2).export(str(path), example=make_batch(0)))


@pytest.fixture
def document(folder: Path) -> Any:
    return json.loads((folder / "graph.serving_default.json").read_text())


def loaded(document: Any) -> Any:
    return graph_from_bytes(json.dumps(document).encode(), origin="file 'x'")


def test_what_was_written_is_read(document: Any) -> None:
    assert loaded(document).outputs == ("score", "vector")


def test_a_manifest_names_the_kind_and_the_columns_of_numbers(folder: Path) -> None:
    opened = open_export(str(folder))
    assert (opened.manifest.kind, opened.manifest.shards) == ("standalone", 0)
    assert sorted((each.name, each.dtype, each.width) for each in opened.dense_columns) == [
        ("ages", "float32", None),
        ("price", "float32", 2),
    ]


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.os.system.default",
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.save.default",
        "torch.ops.aten.add.Tensor.__class__",
        "torch.serialization.load",
        "torch.hub.load",
        "_operator.attrgetter",
        "_operator.methodcaller",
        "math.__loader__",
        "#ext:run",
        "builtins.eval",
        "torch.ops.higher_order.cond",
        "torch.ops.aten.segment_reduce.default",
        "torch.ops.aten.add.out",
        "torch.ops.prims.add.default",
        "_operator.pow",
        7,
    ],
)
def test_foreign_operations_are_refused(document: Any, target: Any) -> None:
    document["graph_module"]["graph"]["nodes"][0]["target"] = target
    with pytest.raises(UnimplementedError, match=r"is not in the list of operations.*nothing of it was run"):
        loaded(document)


MARK = f"{tempfile.gettempdir()}/monolith-test-crafted-graph"
RUN = f"__import__('pathlib').Path('{MARK}').touch()"


def _places(value: Any, key: str) -> Any:
    """Every dict in a document that has a key."""
    if isinstance(value, dict):
        if key in value:
            yield value
        for each in value.values():
            yield from _places(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from _places(each, key)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("expr_str", RUN),
        ("expr_str", f"Symbol('s1', positive=True) + {RUN}"),
        ("expr_str", "Pow(Integer(9), Integer(999999999))"),
        ("expr_str", "Symbol('s1').__class__"),
        ("expr_str", "x" * 2000),
        ("expr_str", 3),
        ("name", f"x={RUN}"),
        ("name", "x, *, y"),
        ("name", "x\nimport os"),
        ("name", "lambda"),
        ("as_name", f"x={RUN}"),
    ],
)
def test_crafted_texts_never_run(document: Any, key: str, text: Any) -> None:
    Path(MARK).unlink(missing_ok=True)
    found = list(_places(document["graph_module"], key))
    assert found or key == "as_name"
    for place in found[:1] + found[-1:]:
        place[key] = text
    if not found:
        document["graph_module"]["graph"]["nodes"][0]["inputs"].append({"arg": {"as_sym_int": {key: text}}})
    with pytest.raises(DataLossError):
        loaded(document)
    assert not Path(MARK).exists()


def test_inputs_of_a_graph_are_names(document: Any) -> None:
    Path(MARK).unlink(missing_ok=True)
    graph = document["graph_module"]["graph"]
    graph["inputs"][0]["as_tensor"]["name"] = f"x={RUN}"
    with pytest.raises(DataLossError, match="is no name of a value"):
        loaded(document)
    assert not Path(MARK).exists()


def test_code_that_torch_evaluates_elsewhere_is_ignored(document: Any) -> None:
    Path(MARK).unlink(missing_ok=True)
    crafted = copy.deepcopy(document)
    crafted["graph_module"] |= {"guards_code": [RUN], "module_call_graph": [{"fqn": RUN}], "metadata": {"custom": RUN}}
    for node in crafted["graph_module"]["graph"]["nodes"]:
        node["metadata"] = {"torch_fn": RUN, "source_fn_stack": RUN, "stack_trace": f"\n{RUN}"}
    assert loaded(crafted).outputs == ("score", "vector")
    assert not Path(MARK).exists()


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: {"x": value}])
def test_a_document_is_nested_at_most_64_deep(document: Any, wrap: Callable[[Any], Any]) -> None:
    nested: Any = []
    for _ in range(63):
        nested = wrap(nested)
    document["graph_module"]["metadata"] = nested
    assert loaded(document).outputs == ("score", "vector")
    document["graph_module"]["metadata"] = wrap(nested)
    with pytest.raises(DataLossError, match="nested deeper than any graph"):
        loaded(document)


def test_arguments_of_other_kinds_are_refused(document: Any) -> None:
    for kind in ("as_graph", "as_custom_obj", "as_operator", "as_string_to_argument"):
        crafted = copy.deepcopy(document)
        crafted["graph_module"]["graph"]["nodes"][0]["inputs"].append({"name": "x", "arg": {kind: {}}, "kind": 1})
        with pytest.raises(DataLossError, match=kind):
            loaded(crafted)


def test_arguments_that_an_operation_does_not_take(document: Any) -> None:
    nodes = document["graph_module"]["graph"]["nodes"]
    flatten = next(node for node in nodes if node["target"] == "torch.ops.aten.flatten.using_ints")
    flatten["inputs"][1]["arg"] = {"as_string": "x"}
    with pytest.raises(DataLossError, match="arguments that it does not take"):
        graph_from_bytes(json.dumps(document).encode(), origin="file 'x'", joins_rows=True)


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b"null", b'{"format": "monolith-graph"}', b"[" * 100_000, b"\xff\xfe", b'"x"']
)
def test_bytes_that_are_no_graph(text: bytes) -> None:
    with pytest.raises(DataLossError, match="file 'x': not a graph"):
        graph_from_bytes(text, origin="file 'x'")


def test_a_graph_in_the_format_of_another_torch_names_both_versions(document: Any) -> None:
    document["torch"] = "9.9.9"
    document["graph_module"]["graph"]["nodes"][0]["inputs"] = [{"other": 1}]
    with pytest.raises(FailedPreconditionError, match=re.escape(f"written by torch 9.9.9, torch {torch.__version__}")):
        loaded(document)


def test_a_torn_export_is_none(folder: Path, tmp_path: Path) -> None:

    for name in ("graph.serving_default.json", "weights.safetensors", "example.safetensors"):
        torn = tmp_path / name / "1"
        shutil.copytree(folder, torn)
        data = (torn / name).read_bytes()
        (torn / name).write_bytes(data[:-3])
        opened = open_export(str(torn))
        with pytest.raises(DataLossError, match=name):
            opened.graph("serving_default"), opened.weights(), opened.warm_up("serving_default")
        (torn / name).unlink()
        with pytest.raises(OpError, match=name):
            opened.graph("serving_default"), opened.weights(), opened.warm_up("serving_default")
    (torn / "manifest.json").unlink()
    with pytest.raises(NotFoundError, match="neither an export"):
        open_export(str(torn))
    with pytest.raises(NotFoundError, match="neither an export"):
        open_export(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"format_version": 1}, UnimplementedError),
        ({"format_version": 4}, UnimplementedError),
        ({"format": "x"}, DataLossError),
        ({"kind": "x"}, DataLossError),
        ({"rows": {"path": "../../../etc"}}, DataLossError),
        ({"rows": {"buckets": [0, 2000]}}, DataLossError),
        ({"rows": {"buckets": [0, 1.5]}}, DataLossError),
        ({"rows": {"manifests": {}}}, DataLossError),
        ({"rows": {"manifests": {"other": {"bytes": 1, "crc32c": 1}}}}, DataLossError),
        ({"rows": {"manifests": {name: {"bytes": -1, "crc32c": 1} for name in ("emb", "wide")}}}, DataLossError),
        ({"rows": {"manifests": []}}, DataLossError),
        ({"files": {"x": {"bytes": -1, "crc32c": 1}}}, DataLossError),
        ({"files": {"x": {"bytes": 1 << 63, "crc32c": 1}}}, DataLossError),
        ({"files": {"../x": {"bytes": 1, "crc32c": 1}}}, DataLossError),
        ({"features": [{}]}, DataLossError),
        ({"signatures": {"a": {}}}, DataLossError),
        ({"version": "7"}, DataLossError),
    ],
)
def test_a_manifest_of_another_kind(folder: Path, tmp_path: Path, change: Any, error: type[OpError]) -> None:
    document = json.loads((folder / "manifest.json").read_text())
    for name, value in change.items():
        document[name] = {**document[name], **value} if name == "rows" else value
    (tmp_path / "manifest.json").write_bytes(seal(document))
    with pytest.raises(error, match=r"manifest\.json"):
        open_export(str(tmp_path))


def test_a_manifest_with_the_smallest_and_largest_sizes_of_files(folder: Path, tmp_path: Path) -> None:
    document = json.loads((folder / "manifest.json").read_text())
    files = {"x": {"bytes": 0, "crc32c": 0}, "y": {"bytes": (1 << 63) - 1, "crc32c": 1}}
    (tmp_path / "manifest.json").write_bytes(seal({**document, "files": files}))
    assert open_export(str(tmp_path)).manifest.files == files


@pytest.mark.parametrize(
    "change",
    [
        {"wide_index": 512},
        {"number": 1 << 15},
        {"number": -1},
        {"number": 1.5},
        {"padding_id": "x"},
        {"dims": [4, 0]},
        {"dims": []},
    ],
)
def test_a_feature_that_no_model_has_is_refused(folder: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    document = json.loads((folder / "manifest.json").read_text())
    document["features"][0] |= change
    (tmp_path / "manifest.json").write_bytes(seal(document))
    with pytest.raises(DataLossError, match=r"manifest\.json"):
        open_export(str(tmp_path))


def test_another_torch_is_tried_against_the_example(folder: Path, tmp_path: Path) -> None:

    shutil.copytree(folder, tmp_path / "1")
    document = json.loads((folder / "manifest.json").read_text())
    document["torch"] = "9.9.9"
    (tmp_path / "1" / "manifest.json").write_bytes(seal(document))
    opened = open_export(str(tmp_path / "1"))
    graph, weights = opened.graph("serving_default"), opened.weights()
    opened.verify("serving_default", graph, weights)
    name = next(name for name in weights if name.startswith("top"))
    with pytest.raises(FailedPreconditionError, match=r"exported with torch 9.9.9, and with torch \d"):
        opened.verify("serving_default", graph, {**weights, name: weights[name] + 100.0})


class Branches(ml.Task):
    """Cannot be exported: what it computes depends on a number."""

    def build(self) -> None:
        self.emb = ml.Embeddings({"user": ml.Slot(dim=2)})

    def input_fn(self, mode: Any) -> Any:
        return [{"user": torch.tensor([1, 2, 3])}] * 2

    def model_fn(self, features: Any, mode: Any) -> Spec:
        score = self.emb(features)["user"].sum(1)
        if mode == "predict" and score.sum().item() > 100:  # here
            score = score + 1
        return Spec(score.sum(), predictions=score)


class OtherIds(Branches):
    """Cannot be exported: looks up ids that no request has."""

    def model_fn(self, features: Any, mode: Any) -> Spec:
        score = self.emb({"user": features["user"] + 1})["user"].sum(1)  # here
        return Spec(score.sum(), predictions=score)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, score: Any) -> Any:
        return score + self.get_buffer("calls").add_(1)


class Counts(Branches):
    """Cannot be exported: a prediction changes a weight."""

    def build(self) -> None:
        super().build()
        self.counter = Counter()

    def model_fn(self, features: Any, mode: Any) -> Spec:
        score = self.counter(self.emb(features)["user"].sum(1))
        return Spec(score.sum(), predictions=score)


def test_a_model_that_changes_a_weight_while_it_predicts_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"the model changes 'counter\.calls' in place while it predicts"):
        trained(1, Counts).export(str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("task", [Branches, OtherIds])
def test_a_model_that_cannot_be_exported_is_refused_with_its_line(task: type[ml.Task], tmp_path: Path) -> None:
    trainer = trained(1, task)
    with pytest.raises(InvalidArgumentError, match=r"test_graph_check\.py:\d+ \(.*# here\)") as caught:
        trainer.export(str(tmp_path / "out"))
    assert "monolith serve --task" in caught.value.message
    assert not (tmp_path / "out").exists()
