"""Helpers under the names of ByteDance Monolith's `test_utils`: table configs and traces."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch

from monolith.tables import HashTable
from monolith.tables.compressors import Fp16, Fp32
from monolith.tables.initializers import Zeros
from monolith.tables.row_optimizers import Sgd
from monolith.testing import generate_test_hash_table_config, profile_it


def test_the_default_is_one_segment_of_two_zeros_with_sgd() -> None:
    config = generate_test_hash_table_config()
    assert config.dim == 2
    (segment,) = config.segments
    assert segment.initializer == Zeros()
    assert segment.optimizer == Sgd(learning_rate=1.0)
    assert segment.compressor == Fp32()


def test_float16_changes_the_compressor_alone() -> None:
    config = generate_test_hash_table_config(use_float16=True)
    assert config.segments[0].compressor == Fp16()
    assert config.dim == generate_test_hash_table_config().dim


@pytest.mark.parametrize(("dim", "learning_rate"), [(1, 0.5), (7, 2.0)])
def test_a_table_of_it_moves_by_minus_the_rate_times_the_gradient(dim: int, learning_rate: float) -> None:
    table = HashTable(generate_test_hash_table_config(dim, learning_rate=learning_rate))
    ids = torch.tensor([3, -3])
    gradients = torch.arange(2.0 * dim).reshape(2, dim)
    table.apply_gradients(ids, gradients)
    assert torch.equal(table.lookup(ids), -learning_rate * gradients)


def test_a_wrong_dim_is_refused() -> None:
    with pytest.raises(ValueError, match="dim must be > 0, got 0"):
        generate_test_hash_table_config(dim=0)


def test_a_call_is_traced_and_returns_what_it_returns(tmp_path: Path) -> None:
    @functools.partial(profile_it, folder=tmp_path / "traces")
    def multiply(size: int, *, scale: float = 1.0) -> float:
        """Makes something to see."""
        return float((torch.ones(size, size) @ torch.ones(size, size)).sum() * scale)

    assert multiply(8, scale=2.0) == 1024
    assert multiply(2) == 8
    assert multiply.__doc__ == "Makes something to see."
    traces = sorted((tmp_path / "traces").iterdir())
    assert len(traces) == 2
    assert all(trace.name.startswith("multiply-") for trace in traces)
    events = json.loads(traces[0].read_text())["traceEvents"]
    assert any("aten::mm" in str(event.get("name")) for event in events)


def test_traces_go_to_a_folder_for_temporary_files_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    profile_it(lambda: None)()
    assert [path.suffix for path in (tmp_path / "tests_profile").iterdir()] == [".json"]


def test_a_call_that_raises_is_traced_too(tmp_path: Path) -> None:
    def fail() -> None:
        torch.ones(3).sum()
        raise ValueError("as it should")

    with pytest.raises(ValueError, match="as it should"):
        profile_it(fail, folder=tmp_path)()
    assert len(list(tmp_path.iterdir())) == 1
