"""Where kernels run, as far as it needs no GPU: which device is meant, where NVRTC is looked for, and the cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from monolith import device
from monolith.errors import InvalidArgumentError, UnavailableError


def test_one_launcher_serves_all_stores_of_a_device() -> None:
    assert device.launcher_of(torch.device("cpu")) is device.launcher_of(torch.device("cpu"))


def test_other_devices_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="device must be 'cuda', 'cuda:N' or 'cpu', got 'meta'"):
        device.launcher_of(torch.device("meta"))


@pytest.mark.parametrize(("version", "target"), [("12.4", "built for CUDA 12.4"), (None, "built for CPUs")])
def test_a_machine_without_a_gpu_gets_an_error_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, version: str | None, target: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", version)
    with pytest.raises(UnavailableError, match="finds no GPU; install a torch with CUDA") as raised:
        device.launcher_of(torch.device("cuda:63"))
    assert target in str(raised.value)


def test_a_gpu_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert device.indexed("cuda") == torch.device("cuda:3")
    assert device.indexed("cuda:1") == torch.device("cuda:1")
    assert device.indexed(torch.device("cpu")) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device.indexed("cuda") == torch.device("cuda")


def test_the_cache_is_a_folder_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MONOLITH_KERNEL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert device.cache_folder() == tmp_path / "monolith" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert device.cache_folder() == Path.home() / ".cache" / "monolith" / "kernels"
    monkeypatch.setenv("MONOLITH_KERNEL_CACHE", str(tmp_path / "own"))
    assert device.cache_folder() == tmp_path / "own"


def test_nvrtc_of_torchs_cuda_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("libnvrtc.so.11", "libnvrtc.so.12", "libnvrtc-builtins.so.12.4", "libcudart.so.12"):
        folder = tmp_path / "cuda_nvrtc" / "lib"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    monkeypatch.setattr(device, "_nvidia_folders", lambda: [str(tmp_path), str(tmp_path / "missing")])
    monkeypatch.setattr(torch.version, "cuda", "12.4")
    found = [Path(path).name for path in device.nvrtc_paths()]
    assert found == ["libnvrtc.so.12", "libnvrtc.so.11", "libnvrtc.so.12", "libnvrtc.so"]
    monkeypatch.setattr(torch.version, "cuda", None)
    assert [Path(path).name for path in device.nvrtc_paths()][-1] == "libnvrtc.so"
