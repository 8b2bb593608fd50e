"""Tensors of a device that only Python knows: its memory is out of NumPy's reach, and copies from and to it count."""

from __future__ import annotations

from collections import Counter
from typing import Any, Self

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map

NAME = "far"
COPIES: Counter[str] = Counter()
"""Tensors copied: ``to device`` and ``to host``."""


class DeviceTensor(torch.Tensor):
    """A tensor of the device. It refuses NumPy, `data_ptr`, and operations with tensors of the host."""

    on_host: torch.Tensor
    """What the memory of the device holds."""

    @staticmethod
    def __new__(cls, on_host: torch.Tensor) -> Self:
        made: Self = torch.Tensor._make_wrapper_subclass(
            cls,
            on_host.shape,
            strides=on_host.stride(),
            storage_offset=on_host.storage_offset(),
            dtype=on_host.dtype,
            device=torch.device(NAME, 0),
        )
        made.on_host = on_host
        return made

    def data_ptr(self) -> int:
        raise RuntimeError("data_ptr of a tensor on another device")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"DeviceTensor({list(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch calls it as a class method
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        name = func.overloadpacket.__name__
        if name == "_to_copy" and (device := options.get("device")) is not None and device.type == "cpu":
            COPIES["to host"] += 1
            return func(_on_host(args[0]), **options)
        if name == "copy_":
            to, source = args[:2]
            COPIES["to device"] += not isinstance(source, DeviceTensor)
            COPIES["to host"] += not isinstance(to, DeviceTensor)
            _on_host(to).copy_(_on_host(source))
            return to
        tensors = [each for each in tree_leaves((args, options)) if isinstance(each, torch.Tensor)]
        if any(not isinstance(each, cls) and each.dim() > 0 for each in tensors):
            raise RuntimeError(f"{name}: expected all tensors on one device, got some of the host")
        if "device" in options:
            options["device"] = torch.device("cpu")
        out = func(*tree_map(_on_host, args), **tree_map(_on_host, options))
        if name.endswith("_") and isinstance(args[0], cls):
            return args[0]  # changed in place
        return tree_map(lambda each: cls(each) if isinstance(each, torch.Tensor) else each, out)


def _on_host(value: Any) -> Any:
    return value.on_host if isinstance(value, DeviceTensor) else value


_library: torch.library.Library | None = None


def add_device() -> bool:
    """Adds the device to torch, for the rest of the process; False if this torch cannot have devices made in Python."""
    global _library  # noqa: PLW0603 - a process has one torch
    add = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if add is None or _library is not None:
        return _library is not None
    add(NAME)
    _library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]

    def empty(size: Any, *, dtype: Any = None, **_: Any) -> DeviceTensor:
        return DeviceTensor(torch.empty(size, dtype=dtype))

    def empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> DeviceTensor:
        return DeviceTensor(torch.empty_strided(size, stride, dtype=dtype))

    _library.impl("empty.memory_format", empty, "PrivateUse1")  # type: ignore[no-untyped-call]
    _library.impl("empty_strided", empty_strided, "PrivateUse1")  # type: ignore[no-untyped-call]
    return True
