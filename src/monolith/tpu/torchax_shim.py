"""The only import of jax and torchax: checks their versions, and lets torchax be imported with a newer torch.

Torch 2.13 removed the overloads for named tensors, which torchax 0.0.13 mentions when it fills its tables; this is
reported upstream (google/torchax issue 101) and no release has the fix. So while torchax is imported those 21 names,
and no others, are placeholders. Other process-wide changes of torchax are undone where possible: torch keeps a device
"jax" from then on, and its compiler, which queries the current device, stops working.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import threading
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch
from torch import Tensor

from monolith.errors import UnimplementedError

if TYPE_CHECKING:
    from collections.abc import Iterator


def batch_norm(  # noqa: PLR0913, PLR0917 - as torch.nn.functional has it
    input: Tensor,  # noqa: A002 - as torch.nn.functional has it
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Computes ``torch.nn.functional.batch_norm``; torchax does not update the running mean and variance."""
    dims = [dim for dim in range(input.ndim) if dim != 1]
    shape = [-1 if dim == 1 else 1 for dim in range(input.ndim)]
    if training or running_mean is None or running_var is None:
        mean, variance = input.mean(dims), input.var(dims, unbiased=False)
        if running_mean is not None and running_var is not None:
            count = input.numel() / input.shape[1]
            running_mean.copy_((1 - momentum) * running_mean + momentum * mean.detach())
            running_var.copy_((1 - momentum) * running_var + momentum * variance.detach() * (count / max(count - 1, 1)))
    else:
        mean, variance = running_mean, running_var
    scaled = (input - mean.reshape(shape)) * torch.rsqrt(variance.reshape(shape) + eps)
    if weight is not None:
        scaled = scaled * weight.reshape(shape)
    return scaled if bias is None else scaled + bias.reshape(shape)


@contextlib.contextmanager
def own_backward_refused(name: str) -> Iterator[None]:
    """Refuses ``torch.autograd.Function`` inside, in this thread: JAX would differentiate its forward instead."""
    function: Any = torch.autograd.Function
    apply, thread = function.__dict__["apply"], threading.get_ident()

    def refused(cls: type) -> NoReturn:
        raise UnimplementedError(
            f"task {name}: its model uses {cls.__name__}, a torch.autograd.Function, whose own backward JAX does not"
            " see; write it with operations of torch, or train with `monolith train`"
        )

    def checked(cls: type, *args: Any, **options: Any) -> Any:
        if threading.get_ident() == thread:
            refused(cls)
        return apply.__get__(None, cls)(*args, **options)  # another thread, which traces nothing

    function.apply = classmethod(checked)
    try:
        yield
    finally:
        function.apply = apply


_log = logging.getLogger(__name__)

INSTALL: Final = "pip install 'monolith-torch[tpu]'"
"""Command to run if a package is missing or of another version."""
JAX_VERSIONS: Final = ((0, 10, 2), (0, 11))
"""From the first version, inclusive, to the second, exclusive."""
TORCHAX_VERSIONS: Final = frozenset({"0.0.13"})
"""Tested releases; torchax has no stable interface."""
REMOVED_OVERLOADS: Final = frozenset(
    {
        "aten.all.dimname",
        "aten.all.dimname_out",
        "aten.index_add.dimname",
        "aten.index_copy.dimname",
        "aten.index_copy_.dimname",
        "aten.index_fill.Dimname_Scalar",
        "aten.index_fill.Dimname_Tensor",
        "aten.index_fill_.Dimname_Scalar",
        "aten.index_fill_.Dimname_Tensor",
        "aten.norm.names_ScalarOpt_dim",
        "aten.norm.names_ScalarOpt_dim_dtype",
        "aten.norm.names_dtype_out",
        "aten.norm.names_out",
        "aten.prod.dim_Dimname",
        "aten.std.correction_names",
        "aten.std.correction_names_out",
        "aten.std.names_dim",
        "aten.std.names_out",
        "aten.std_mean.correction_names",
        "aten.std_mean.names_dim",
        "aten.unbind.Dimname",
    }
)
"""Overloads of named tensors that torchax mentions and torch has removed."""


@dataclass(frozen=True, slots=True)
class Backend:
    """The modules that run a model of torch by JAX."""

    jax: Any
    """The package."""
    torchax: Any
    """The package."""
    interop: Any
    """``torchax.interop``: functions of torch as functions of JAX."""
    env: Any
    """The environment of torchax in which tensors of JAX compute."""


def require_versions() -> None:
    """Checks the installed versions without importing the packages.

    Raises:
        ImportError: jax or torchax is missing, or of an untested version; names the command to run.
    """
    jax_version = _installed("jax")
    first, end = JAX_VERSIONS
    if not first <= _numbers(jax_version) < end:
        expected = f">= {'.'.join(map(str, first))}, < {'.'.join(map(str, end))}"
        raise ImportError(f"tpu: jax {expected} expected, got {jax_version}; {INSTALL}")
    torchax_version = _installed("torchax")
    if torchax_version not in TORCHAX_VERSIONS:
        known = ", ".join(sorted(TORCHAX_VERSIONS))
        raise ImportError(f"tpu: torchax {known} expected, got {torchax_version}, which was never tried; {INSTALL}")


@functools.cache
def load_backend() -> Backend:
    """Imports jax and torchax, once.

    Raises:
        ImportError: see `require_versions`; or torchax does not go together with this torch.
    """
    require_versions()
    jax = importlib.import_module("jax")
    fast_attention = torch.backends.mha.get_fastpath_enabled()
    try:
        with _without_removed_overloads():
            torchax = importlib.import_module("torchax")
            env = torchax.default_env()
    except AttributeError as error:
        raise ImportError(
            f"tpu: torchax {_installed('torchax')} does not go together with torch {torch.__version__}: {error};"
            f" {INSTALL}"
        ) from error
    finally:
        # The import turns it off process-wide; a compiled model does not use it anyway.
        torch.backends.mha.set_fastpath_enabled(fast_attention)
    device: Any = importlib.import_module("torchax.device_module")
    device.get_rng_state = _no_random_state
    env.override_op_definition(torch.nn.functional.batch_norm, batch_norm)
    return Backend(jax, torchax, importlib.import_module("torchax.interop"), env)


def _no_random_state(device: object = None) -> list[Any]:  # noqa: ARG001 - torch passes it
    """Returns no random states, for torch calls such as ``torch.random.fork_rng``."""
    return []


@contextlib.contextmanager
def _without_removed_overloads() -> Iterator[None]:
    """Adds placeholders for overloads that torch removed and torchax mentions."""
    packet: Any = torch._ops.OpOverloadPacket  # noqa: SLF001 - the only place where an overload can be missed
    find = packet.__getattr__
    stand_ins: dict[str, str] = {}

    def find_or_stand_in(self: Any, name: str) -> Any:
        try:
            return find(self, name)
        except AttributeError:
            overload = f"{self}.{name}"
            if overload not in REMOVED_OVERLOADS:
                raise
            return stand_ins.setdefault(overload, f"removed from torch: {overload}")

    packet.__getattr__ = find_or_stand_in
    try:
        yield
    finally:
        packet.__getattr__ = find
    if stand_ins:
        _log.debug("torchax mentions %d overloads that torch has removed: %s", len(stand_ins), ", ".join(stand_ins))


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise ImportError(f"tpu: the package {package!r} is not installed; {INSTALL}") from None


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the release numbers of a version, without its suffix; () for an invalid version."""
    parts = version.partition("+")[0].split(".")
    numbers: list[int] = []
    for part in parts:
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
