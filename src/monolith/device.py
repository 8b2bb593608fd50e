"""Where the kernels of the core run: a GPU, or the processor of this machine with the same text.

Nothing of CUDA is needed to install this package. The driver of the GPU and NVRTC, the compiler that torch's wheels
bring along, are opened when the first table is put on a GPU; compiled kernels are kept in a folder of the user.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from pathlib import Path

import torch

from monolith import _core, environment
from monolith.errors import InvalidArgumentError, UnavailableError

_DEVICES = "'cuda', 'cuda:N' or 'cpu'"
_CACHE_VARIABLE = "MONOLITH_KERNEL_CACHE"
_launchers: dict[torch.device, _core.DeviceLauncher] = {}
_lock = threading.Lock()


def launcher_of(device: torch.device) -> _core.DeviceLauncher:
    """Returns what runs kernels on a device, the same for every caller: ``cpu``, or a GPU by its number.

    Raises:
        InvalidArgumentError: neither a processor nor a GPU.
        UnavailableError: there is no such GPU, or driver or compiler are missing; names which, and what to do.
    """
    with _lock:
        if device not in _launchers:
            _launchers[device] = _new_launcher(device)
        return _launchers[device]


def indexed(device: torch.device | str) -> torch.device:
    """Returns the device with the number of its GPU; the current one of torch where none is given."""
    try:
        named = torch.device(device)
    except RuntimeError:
        raise InvalidArgumentError(f"tables on a device: device must be {_DEVICES}, got '{device}'") from None
    has_number = ":" in str(named)
    if named.type != "cuda" or has_number or not torch.cuda.is_available():
        return named
    return torch.device("cuda", torch.cuda.current_device())


def _new_launcher(device: torch.device) -> _core.DeviceLauncher:
    if device.type == "cpu":
        return _core.DeviceLauncher.on_cpu(shuffled=False)
    if device.type != "cuda":
        raise InvalidArgumentError(f"tables on a device: device must be {_DEVICES}, got '{device}'")
    if not torch.cuda.is_available():
        target = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs"
        raise UnavailableError(
            f"tables on a device: torch {torch.__version__}, built for {target}, finds no GPU; install a torch with"
            " CUDA and the driver of the GPU, or keep the tables in main memory: leave `device` out"
        )
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return _core.DeviceLauncher.on_gpu(device.index or 0, nvrtc_paths=nvrtc_paths(), cache_folder=str(cache_folder()))


def cache_folder() -> Path:
    """Returns the folder of compiled kernels: MONOLITH_KERNEL_CACHE, or one in the user's cache folder."""
    chosen = environment.get(_CACHE_VARIABLE)
    if chosen is not None:
        return Path(chosen)
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "monolith" / "kernels"


def nvrtc_paths() -> list[str]:
    """Returns where NVRTC may be: in the packages that torch's wheels depend on, then wherever the system looks."""
    folders = [Path(entry) for entry in _nvidia_folders()]
    found = sorted(path for folder in folders for path in folder.rglob("libnvrtc.so.*") if "builtins" not in path.name)
    major = (torch.version.cuda or "").split(".")[0]
    ours = [path for path in found if path.name.removeprefix("libnvrtc.so.").split(".")[0] == major]
    names = [f"libnvrtc.so.{major}"] if major else []
    return [*map(str, ours), *(str(path) for path in found if path not in ours), *names, "libnvrtc.so"]


def _nvidia_folders() -> list[str]:
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    return [*folders, os.fspath(Path(torch.__file__).parent / "lib"), os.path.join(sys.prefix, "lib")][:2]  # noqa: PTH118
