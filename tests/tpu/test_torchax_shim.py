"""jax and torchax: which versions are taken, and what is left as it was."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

from monolith.tpu import torchax_shim
from monolith.tpu.torchax_shim import load_backend, require_versions

INSTALL = "pip install 'monolith-torch[tpu]'"


def versions(monkeypatch: pytest.MonkeyPatch, **installed: str | None) -> None:
    def version(package: str) -> str:
        found = installed.get(package)
        if found is None:
            raise metadata.PackageNotFoundError(package)
        return found

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.parametrize("package", ["jax", "torchax"])
def test_a_missing_package_names_the_command(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    versions(monkeypatch, **{"jax": "0.10.2", "torchax": "0.0.13", package: None})
    with pytest.raises(ImportError, match=f"'{package}' is not installed; {re.escape(INSTALL)}"):
        require_versions()


@pytest.mark.parametrize("version", ["0.10.1", "0.11.0", "0.9.9", "1.0", "main", "0.11.0rc1"])
def test_another_jax_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    versions(monkeypatch, jax=version, torchax="0.0.13")
    with pytest.raises(ImportError, match=rf"jax >= 0\.10\.2, < 0\.11 expected, got {re.escape(version)}; pip install"):
        require_versions()


@pytest.mark.parametrize("version", ["0.0.12", "0.0.14", "0.1.0"])
def test_another_torchax_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    versions(monkeypatch, jax="0.10.3", torchax=version)
    with pytest.raises(ImportError, match=rf"torchax 0\.0\.13 expected, got {version}, which was never tried; pip"):
        require_versions()


def test_known_versions_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    versions(monkeypatch, jax="0.10.2", torchax="0.0.13")
    require_versions()
    versions(monkeypatch, jax="0.10.9+cpu", torchax="0.0.13")
    require_versions()


def test_torch_is_left_as_it_was() -> None:
    find = torch._ops.OpOverloadPacket.__getattr__
    fast = torch.backends.mha.get_fastpath_enabled()
    load_backend()
    assert torch._ops.OpOverloadPacket.__getattr__ is find
    assert torch.backends.mha.get_fastpath_enabled() is fast
    with pytest.raises(AttributeError):
        _ = torch.ops.aten.prod.dim_Dimname
    assert torch.zeros(2).device == torch.device("cpu")


def test_only_names_that_torch_removed_are_missed() -> None:
    with torchax_shim._without_removed_overloads():
        assert str(torch.ops.aten.prod.dim_Dimname) == "removed from torch: aten.prod.dim_Dimname"
        with pytest.raises(AttributeError):
            _ = torch.ops.aten.prod.dim_Dimname_that_never_was


@pytest.mark.slow
def test_nothing_of_jax_is_imported_before_a_runner_needs_it() -> None:
    program = "import sys, monolith.tpu, monolith.cli.tpu; print('jax' in sys.modules, 'torchax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.split() == ["False", "False"]


def test_the_extra_requires_the_versions_that_the_shim_accepts() -> None:
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("tpu = "))
    assert '"jax>=0.10.2,<0.11"' in line
    assert all(f'"torchax=={version}"' in line for version in torchax_shim.TORCHAX_VERSIONS)


def test_numbers_can_be_drawn_apart_although_there_is_another_device() -> None:
    load_backend()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        drawn = torch.rand(2)
    assert drawn.shape == (2,)
