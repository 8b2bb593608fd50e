"""Ranks whose tensors are on GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from collective.ranks import results
from monolith.collective.torch_distributed import _backends
from programs import Programs

PROGRAM = Path(__file__).with_name("cuda_suite.py")


@pytest.mark.parametrize(
    ("variables", "num_gpus", "backend"),
    [
        ({}, 1, "cpu:gloo,cuda:nccl"),
        ({"LOCAL_WORLD_SIZE": "2"}, 2, "cpu:gloo,cuda:nccl"),
        ({"LOCAL_WORLD_SIZE": "3"}, 2, "gloo"),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 1, "gloo"),
        ({"LOCAL_WORLD_SIZE": "2"}, 0, "gloo"),
    ],
)
def test_nccl_is_used_where_every_process_has_a_gpu(
    variables: dict[str, str], num_gpus: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num_gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert _backends() == backend


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_two_ranks_of_one_gpu_sum_gather_and_broadcast_there(programs: Programs, tmp_path: Path) -> None:
    """They share the GPU, or have one each."""
    found = results(programs, PROGRAM, tmp_path, size=2, variables={"LOCAL_WORLD_SIZE": "2"})
    assert found == [{"sum": [3.0, 3.0], "mean": [1.5, 1.5], "rows": [1.0, 2.0, 2.0], "first": [1.0]}] * 2
