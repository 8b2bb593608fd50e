"""What is written is what TensorBoard's own data provider reads."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensorboard import context
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.compat.proto import summary_pb2
from tensorboard.data.provider import RunTagFilter
from tensorboard.util import tensor_util

from monolith.observe.summaries import (
    PLUGIN_NAME,
    SummaryWriter,
    create_summary_metadata,
    feature_insight_data,
    nas_data,
)

NAMES = ["f1", "f2", "f3"]
SIZES = [3, 5, 9]
GROUPS = [["f1", "f2"], ["f3", "f4"], ["f5", "f6"]]


def read(log_dir: Path, tag: str) -> tuple[bytes, Any]:
    """Plugin content of a tag, and its (step, values) in order, through TensorBoard's data provider."""
    multiplexer = EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(log_dir))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, logdir=str(log_dir))
    about: dict[str, Any] = {
        "experiment_id": "0",
        "plugin_name": PLUGIN_NAME,
        "run_tag_filter": RunTagFilter(runs=["."], tags=[tag]),
    }
    series = provider.list_tensors(context.RequestContext(), **about)["."][tag]
    data = provider.read_tensors(context.RequestContext(), downsample=100, **about)["."][tag]
    return series.plugin_content, [(datum.step, datum.numpy) for datum in data]


def value_of(summary: Any) -> Any:
    (value,) = summary.value
    return value


def array_of(summary: Any) -> Any:
    return tensor_util.make_ndarray(value_of(summary).tensor)


def test_architecture_weights_are_read_back_with_their_head(tmp_path: Path) -> None:
    weight = torch.tensor([0.5, 0.8])
    with SummaryWriter(tmp_path) as writer:
        for step in range(10):
            writer.add_summary(nas_data(weight, NAMES, SIZES, GROUPS), step)
    content, data = read(tmp_path, "gating/monolith_nas_weight")
    assert content == (
        b'{"tag_type": "gating", "segment_names": ["f1", "f2", "f3"], "segment_sizes": [3, 5, 9], '
        b'"group_index": [0, 0, 1]}'
    )
    assert [step for step, _ in data] == list(range(10))
    assert all(np.array_equal(values, weight.numpy()) for _, values in data)


def test_feature_insight_is_read_back_with_its_head(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(3, 17, generator=generator)
    weight = torch.rand(17, 2, generator=generator)
    label = torch.tensor([1.0, 0.0, 1.0])
    with SummaryWriter(tmp_path) as writer:
        for step in range(10):
            writer.add_summary(feature_insight_data(x, NAMES, SIZES, weight=weight, label=label), step)
    content, data = read(tmp_path, "fi_train/monolith_feature_insight")
    assert content == (
        b'{"tag_type": "fi_train", "segment_names": ["f1", "f2", "f3"], "segment_sizes": [2, 2, 2], '
        b'"group_index": [0, 1, 2], "label_size": 1}'
    )
    assert len(data) == 10
    assert data[-1][1].shape == (3, 7)
    np.testing.assert_array_equal(data[-1][1][:, 6], label)


def expected_parts(x: Any, weight: Any, sizes: list[int]) -> list[Any]:
    """Each segment's part of the product, in float64, written from the formula."""
    x, weight = np.asarray(x, np.float64), np.asarray(weight, np.float64)
    ends = np.cumsum(sizes)
    return [
        sum(np.outer(x[:, j], weight[j]) for j in range(end - size, end)) for size, end in zip(sizes, ends, strict=True)
    ]


@given(
    batch=st.integers(0, 4),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    dim=st.integers(1, 3),
    label_size=st.sampled_from([None, 0, 1, 2]),
    seed=st.integers(0, 9),
)
def test_insight_is_its_formula(batch: int, sizes: list[int], dim: int, label_size: int | None, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, sum(sizes), generator=generator)
    weight = torch.randn(sum(sizes), dim, generator=generator)
    names = [f"f{number}" for number in range(len(sizes))]
    shape = None if label_size is None else (batch, label_size) if label_size else (batch,)
    label = None if shape is None else torch.randint(2, shape, generator=generator)
    summary = feature_insight_data(x, names, sizes, weight=weight, label=label)
    got = array_of(summary)
    parts = expected_parts(x, weight, sizes)
    head = json.loads(value_of(summary).metadata.plugin_data.content)
    if label is None:
        want = np.stack([np.square(part).sum(axis=1) for part in parts], axis=1)
        assert head == {
            "tag_type": "fi_direct",
            "segment_names": names,
            "segment_sizes": [1] * len(sizes),
            "label_size": 0,
        }
    else:
        columns = label.numpy().reshape(batch, label_size or 1)
        want = np.concatenate([*parts, columns], axis=1)
        assert head["segment_sizes"] == [dim] * len(sizes)
        assert head["label_size"] == (label_size or 1)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_direct_insight_has_the_bytes_of_the_format() -> None:
    summary = feature_insight_data(torch.ones(2, 3), ["a", "b"], [1, 2], weight=torch.ones(3, 4), group_info=[["a"]])
    assert value_of(summary).tag == "fi_direct/monolith_feature_insight"
    assert value_of(summary).metadata.plugin_data.content == (
        b'{"tag_type": "fi_direct", "segment_names": ["a", "b"], "segment_sizes": [1, 1], "label_size": 0}'
    )
    np.testing.assert_array_equal(array_of(summary), [[4, 16], [4, 16]])


def test_without_a_weight_the_input_is_written_as_it_is() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    direct = feature_insight_data(x, ["a", "b"], [1, 2])
    np.testing.assert_array_equal(array_of(direct), x)
    assert json.loads(value_of(direct).metadata.plugin_data.content)["segment_sizes"] == [1, 2]
    train = feature_insight_data(x.double(), ["a", "b"], [1, 2], label=torch.tensor([[1, 2], [3, 4]]))
    np.testing.assert_array_equal(array_of(train), [[0, 1, 2, 1, 2], [3, 4, 5, 3, 4]])
    assert array_of(train).dtype == np.float32


def test_groups_of_features_reach_the_head() -> None:
    summary = feature_insight_data(
        torch.ones(1, 3), NAMES, [1, 1, 1], label=torch.ones(1), group_info=[["f3"], ["f1", "f2"]]
    )
    assert json.loads(value_of(summary).metadata.plugin_data.content)["group_index"] == [1, 1, 0]


def test_name_and_description_are_the_types_unless_given() -> None:
    plain = value_of(nas_data([1.0], ["a"], [1]))
    assert (plain.tag, plain.metadata.summary_description) == ("gating/monolith_nas_weight", "gating")
    named = value_of(nas_data([1.0], ["a"], [1], name="tower", description="gates of the tower"))
    assert named.tag == "tower_gating/monolith_nas_weight"
    assert named.metadata.summary_description == "gates of the tower"
    insight = value_of(feature_insight_data(torch.ones(1, 1), ["a"], [1], name="tower"))
    assert insight.tag == "tower_fi_direct/monolith_feature_insight"
    assert insight.metadata.summary_description == "fi_direct"


def test_weights_without_segments_have_an_empty_head() -> None:
    bare = value_of(nas_data([1.0]))
    assert (bare.tag, bare.metadata.plugin_data.content) == ("monolith_nas_weight", b"")
    assert value_of(nas_data([1.0], name="x")).tag == "x/monolith_nas_weight"
    assert value_of(nas_data([1.0], raw_tag="simple")).tag == "simple/monolith_nas_weight"


@pytest.mark.parametrize(
    "weight",
    [
        torch.tensor([0.5, -0.25]),
        torch.tensor([0.5, -0.25], dtype=torch.bfloat16),
        torch.tensor([0.5, -0.25], dtype=torch.float16),
        torch.tensor([[1, 2], [3, 4]]).t(),
        torch.tensor(3.0),
        torch.empty(0),
        torch.tensor([1.0, torch.nan, torch.inf]),
        torch.nn.Parameter(torch.ones(2)),
        torch.tensor([True, False]),
        [0.5, 0.8],
        np.array([2**62, -(2**62)]),
    ],
    ids=str,
)
def test_any_tensor_is_carried_unchanged(weight: Any) -> None:
    got = array_of(nas_data(weight))
    want = torch.as_tensor(weight).detach()
    want = want.float() if want.dtype == torch.bfloat16 else want
    np.testing.assert_array_equal(got, want.numpy())
    assert got.dtype == want.numpy().dtype


def test_a_summary_keeps_no_graph_alive() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    weight = torch.ones(2, 1, requires_grad=True)
    summary = feature_insight_data(x, ["a"], [2], weight=weight, label=torch.ones(2, requires_grad=True))
    np.testing.assert_array_equal(array_of(summary), [[2, 1], [2, 1]])


@pytest.mark.parametrize("content", [b"{}", "{}"])
def test_metadata_is_that_of_a_tensor_for_our_plugin(content: bytes | str) -> None:
    assert create_summary_metadata("text", content) == summary_pb2.SummaryMetadata(
        summary_description="text",
        plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="monolith", content=b"{}"),
        data_class=summary_pb2.DATA_CLASS_TENSOR,
    )
    assert create_summary_metadata().plugin_data.content == b""
    assert create_summary_metadata(meta_content="ü").plugin_data.content == "ü".encode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_tensor": torch.ones(3)}, r"input_tensor must have shape \[B, D\], got \[3\]"),
        ({"segment_names": ["a"]}, "got 1 names and 2 sizes"),
        ({"segment_sizes": [1, 1]}, "must add up to 3 columns, got 2"),
        ({"segment_sizes": [3, 0]}, r"segment_sizes\[1\] must be >= 1"),
        ({"segment_names": [], "segment_sizes": []}, "at least one size"),
        ({"weight": torch.ones(2, 2)}, r"weight must have shape \[3, K\], got \[2, 2\]"),
        ({"label": torch.ones(4)}, r"label must have shape \[2\] or \[2, L\], got \[4\]"),
        ({"label": torch.ones(2, 1, 1)}, "label must have shape"),
        ({"label": torch.ones(())}, "label must have shape"),
        ({"label": torch.ones(2), "group_info": [["a"]]}, r"missing are \['b'\]"),
    ],
)
def test_what_does_not_fit_together_is_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"input_tensor": torch.ones(2, 3), "segment_names": ["a", "b"], "segment_sizes": [1, 2]}
    with pytest.raises(ValueError, match=message):
        feature_insight_data(**{**arguments, **change})


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    for call in (lambda: nas_data([1.0]), lambda: SummaryWriter(tmp_path), create_summary_metadata):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'monolith-torch\[tensorboard\]'"):
            call()


@pytest.mark.slow
def test_tensorflow_is_not_loaded_and_tensorboard_only_on_first_use(tmp_path: Path) -> None:
    program = f"""
import sys
from monolith.observe.summaries import SummaryWriter, nas_data
assert not [name for name in sys.modules if name.startswith("tensorboard")], "tensorboard was loaded by the import"
with SummaryWriter({str(tmp_path)!r}) as writer:
    writer.add_summary(nas_data([1.0]), 1)
assert "tensorboard" in sys.modules
assert "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=55)
    assert read(tmp_path, "monolith_nas_weight")[1][0][0] == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_of_a_gpu_are_carried_with_labels_of_the_cpu() -> None:
    summary = feature_insight_data(
        torch.ones(2, 2, device="cuda"), ["a"], [2], weight=torch.ones(2, 1, device="cuda"), label=torch.tensor([3, 4])
    )
    np.testing.assert_array_equal(array_of(summary), [[2, 3], [2, 4]])


def test_positional_arguments_keep_the_order_users_expect() -> None:
    x, kernel, label = torch.ones(2, 17), torch.ones(17, 2), torch.ones(2)
    by_place = nas_data(torch.ones(2), NAMES, SIZES, GROUPS, "gating", None, "said", "top")
    by_name = nas_data(
        torch.ones(2),
        segment_names=NAMES,
        segment_sizes=SIZES,
        group_info=GROUPS,
        raw_tag="gating",
        description="said",
        name="top",
    )
    assert by_place == by_name
    placed = feature_insight_data(x, NAMES, SIZES, kernel, GROUPS, label, None, "said", "top")
    named = feature_insight_data(
        x, NAMES, SIZES, weight=kernel, group_info=GROUPS, label=label, description="said", name="top"
    )
    assert placed == named


def test_graph_collections_are_refused() -> None:
    with pytest.raises(ValueError, match="nas_data: there are no graph collections, got collections="):
        nas_data(torch.ones(2), collections=["summaries"])  # type: ignore[arg-type]  # what is refused
    with pytest.raises(ValueError, match="feature_insight_data: there are no graph collections"):
        feature_insight_data(torch.ones(2, 17), NAMES, SIZES, collections=["summaries"])  # type: ignore[arg-type]  # same
