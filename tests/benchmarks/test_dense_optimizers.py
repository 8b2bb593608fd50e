"""benchmarks/dense_optimizers.py: every row is measured, and --check judges."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType


@pytest.fixture
def script(project_root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    path = project_root / "benchmarks" / "dense_optimizers.py"
    spec = importlib.util.spec_from_file_location("benchmarks_dense_optimizers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LISTS", {"tiny": [(3, 2), (2,), (3, 2)]})
    threads = torch.get_num_threads()
    yield module
    torch.set_num_threads(threads)


def test_a_quick_run_prints_every_row(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--quick", "--threads", "1"]) == 0
    printed = capsys.readouterr().out
    for row in (
        "Adamom, tiny",
        "Rmsprop, tiny",
        "Rmsprop, v2, tiny",
        "Shampoo before its warm-up, tiny",
        "Shampoo, plain step, tiny",
        "Shampoo, step with new statistics, tiny",
        "Shampoo, step with new preconditioners, tiny",
    ):
        assert f"\n{row}  " in printed
    assert "of 7 requirements met" in printed


def test_check_fails_the_run_when_a_requirement_is_missed(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = script.Measurement(
        row="r", measure="m", figure=2.0, peer="p", peer_figure=1.0, ratio=2.0, limit=1.2, sense=script.Sense.AT_MOST
    )
    monkeypatch.setattr(script.Turns, "beside_adam", lambda *_: [missed])
    monkeypatch.setattr(script.Turns, "beside_products", lambda *_: [])
    assert script.main(["--quick", "--check"]) == 1
    assert script.main(["--quick"]) == 0
    assert "0 of 1 requirements met" in capsys.readouterr().out


def test_the_lists_have_the_sizes_that_are_promised(project_root: Path) -> None:
    spec = importlib.util.spec_from_file_location("lists", project_root / "benchmarks" / "dense_optimizers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model, small = module.LISTS.values()
    sizes = [torch.Size(shape).numel() for shape in model]
    assert (len(model), len(small)) == (30, 500)
    assert (min(sizes), max(sizes)) == (1, 1024 * 1024)
