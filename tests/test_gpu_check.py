from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "gpu-check"
REASONS = ('reason="needs a CUDA device"', 'reason="needs a GPU"')


def test_every_file_with_tests_for_a_gpu_is_run() -> None:
    found = [Path(__file__).parent.parent / each for each in runpy.run_path(str(SCRIPT))["FILES"]]
    assert [each for each in found if not each.exists()] == []
    texts = {path: path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("*.py")}
    texts.pop(Path(__file__))
    named = [path for path, text in texts.items() if any(reason in text for reason in REASONS)]
    modules = {path.stem for path in named if not path.name.startswith(("test_", "conftest"))}
    imports = re.compile(rf"^from .*\b({'|'.join(modules)}) import", re.MULTILINE)
    with_tests = [path for path in named if path.stem not in modules]
    with_tests += [path for path, text in texts.items() if imports.search(text)]
    assert len(with_tests) > 8
    left = [path.name for path in with_tests if not any(path == each or each in path.parents for each in found)]
    assert left == [], "name them in FILES of scripts/gpu-check"


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_it_reports_that_and_runs_nothing() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "finds no GPU here" in done.stderr
