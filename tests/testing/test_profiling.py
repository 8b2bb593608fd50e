"""Profiled functions do what they do, and leave a trace of it."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch

from monolith.testing import profile_it


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
