"""Devices of a compiled step: those of JAX, with a batch divided among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from monolith.errors import FailedPreconditionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.tpu.torchax_shim import Backend


class Devices:
    """Places arrays on devices of one process. Weights go to all of them, batches are divided by examples.

    What is computed does not depend on the number of devices, up to the order of sums: XLA adds up what the parts of a
    batch give. A batch that cannot be divided evenly is replicated on every device.

    Args:
        backend: JAX.
        devices: Of JAX; the first one answers.
    """

    def __init__(self, backend: Backend, devices: Sequence[Any]) -> None:
        self._jax = backend.jax
        self._devices = list(devices)
        sharding = backend.jax.sharding
        mesh = sharding.Mesh(np.asarray(self._devices), ("replica",))
        self._everywhere = sharding.NamedSharding(mesh, sharding.PartitionSpec())
        self._by_example = sharding.NamedSharding(mesh, sharding.PartitionSpec("replica"))

    def __len__(self) -> int:
        return len(self._devices)

    def put(self, values: Any) -> Any:
        """Replicates an array, or a tree of arrays, on every device."""
        return self._jax.device_put(values, self._everywhere)

    def put_batch(self, array: Any) -> Any:
        """Divides an array by its first dim, the examples, among the devices."""
        can_divide = array.ndim > 0 and array.shape[0] > 0 and array.shape[0] % len(self._devices) == 0
        return self._jax.device_put(array, self._by_example if can_divide else self._everywhere)


def tpu_devices(backend: Backend) -> list[Any]:
    """Returns the TPU cores that JAX shows to this process."""
    if backend.jax.process_count() > 1:
        raise FailedPreconditionError(
            f"tpu: JAX runs in {backend.jax.process_count()} processes here, but rows are in the memory of one; give"
            " the run a slice that one host drives"
        )
    try:
        return list(backend.jax.devices("tpu"))
    except RuntimeError as error:
        raise FailedPreconditionError(
            f"tpu: JAX finds no TPU on this machine ({str(error).splitlines()[0]}); start the command on a TPU VM, or"
            " try the task on the CPU with --cpu_test"
        ) from error


def cpu_devices(backend: Backend) -> list[Any]:
    """Returns one device of the CPU, whatever else JAX shows."""
    return list(backend.jax.devices("cpu"))[:1]
