"""Collective calls over Horovod or BytePS, for sites that have them; imported when they are initialised.

The calls follow the documentation of their PyTorch modules. Neither was tested against the real library: Horovod does
not build against the torch that we test with, and BytePS is not available there.
"""

from __future__ import annotations

import importlib
import itertools
from typing import TYPE_CHECKING, Any

import torch

from monolith import environment
from monolith.collective.library import MemoryKeyStore
from monolith.collective.serial_executor import SerialExecutor
from monolith.collective.wire import LibraryWire, exchanging
from monolith.errors import FailedPreconditionError, UnimplementedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from monolith.collective.library import KeyStore

_BROADCAST_VARIABLE = "MONOLITH_WITH_BYTEPS_BCAST"
"""With BytePS: 0 broadcasts weights with Horovod, -1 skips the broadcast, anything else uses BytePS."""


class Horovod:
    """Passes calls through to ``horovod.torch``."""

    module_name = "horovod.torch"
    variable = "MONOLITH_WITH_HOROVOD"

    def __init__(self) -> None:
        self._module: Any = None
        self._line: SerialExecutor | None = None
        self._alone = MemoryKeyStore()

    def init(self, timeout_seconds: float) -> None:  # noqa: ARG002 - these libraries have time limits of their own
        """Imports the library and joins the run; the library's own settings limit the time."""
        if self._module is None:
            module = self._import()
            module.init()
            self._module = module

    def shutdown(self) -> None:
        """Leaves the run."""
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._module is not None:
            self._module.shutdown()
            self._module = None

    def training_line(self) -> SerialExecutor:
        """Returns the line of all calls of training."""
        _ = self._library
        if self._line is None:
            self._line = SerialExecutor("training", LibraryWire(self))
        return self._line

    def saving_line(self) -> SerialExecutor:
        """Raises `UnimplementedError`: the library has only one order of calls."""
        raise UnimplementedError(
            f"collective: {self.module_name} has no second sequence of calls for saves during training; unset "
            f"{self.variable} to use torch.distributed"
        )

    def rank(self) -> int:
        """Returns the number of this process, from 0."""
        return int(self._library.rank())

    def size(self) -> int:
        """Returns the number of processes."""
        return int(self._library.size())

    def allgather(self, tensor: Tensor) -> Tensor:
        """Returns the rows of all ranks, in the order of the ranks."""
        gathered: Tensor = self._in_turn("allgather", lambda library: library.allgather(tensor.detach()))
        return gathered

    def broadcast(self, tensor: Tensor, root_rank: int) -> Tensor:
        """Returns the tensor of the root, as a new one."""
        received: Tensor = self._in_turn("broadcast", lambda library: library.broadcast(tensor.detach(), root_rank))
        return received

    def broadcast_parameters(self, tensors: Mapping[str, Tensor], root_rank: int) -> None:
        """Overwrites these tensors with those of the root."""
        self._in_turn("broadcast_parameters", lambda library: library.broadcast_parameters(dict(tensors), root_rank))

    def allreduce(self, tensor: Tensor) -> Tensor:
        """Returns the sum of all ranks' tensors, as a new one."""
        total: Tensor = self._in_turn("allreduce", lambda library: library.allreduce(tensor.detach(), op=library.Sum))
        return total

    def alltoall(self, tensor: Tensor, sizes: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Returns the rows that each rank has for this one, in the order of the ranks, and their numbers."""
        splits = torch.tensor(sizes, dtype=torch.int32)
        rows, received = self._in_turn("alltoall", lambda library: library.alltoall(tensor.detach(), splits))
        return rows, received.tolist()

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        if hasattr(self._library, "barrier"):
            self._in_turn("barrier", lambda library: library.barrier())
        else:
            self.allreduce(torch.zeros(1))  # no rank has the sum before all ranks have called

    def _in_turn(self, what: str, call: Callable[[Any], Any]) -> Any:
        """Makes a call of the library in the line."""
        library = self._library
        return self.training_line().run(lambda: exchanging(call)(library), what)

    def key_store(self) -> KeyStore:
        """Returns a store in memory for a run of one rank; neither library has a shared one.

        Raises:
            UnimplementedError: in a run of more than one rank; names the variable.
        """
        if self.size() == 1:
            return self._alone
        raise UnimplementedError(
            f"collective: {self.module_name} has nothing by which ranks share a queue of files"
            f" (enable_dynamic_sharding); unset {self.variable} to use torch.distributed, or give every rank a fixed"
            " share of the input"
        )

    @property
    def _library(self) -> Any:
        if self._module is None:
            raise FailedPreconditionError("collective: not initialised; call monolith.collective.init() first")
        return self._module

    def _import(self) -> Any:
        try:
            return importlib.import_module(self.module_name)
        except ImportError as error:
            kind = ModuleNotFoundError if isinstance(error, ModuleNotFoundError) else ImportError
            raise kind(
                f"collective: {self.variable} requires {self.module_name}, which cannot be imported: {error}; install "
                f"{self.module_name.partition('.')[0]} with PyTorch support, or unset {self.variable} to use "
                "torch.distributed",
                name=error.name,
            ) from error


class BytePs(Horovod):
    """Passes calls through to ``byteps.torch``. Calls that a release lacks are emulated, or rejected by name."""

    module_name = "byteps.torch"
    variable = "MONOLITH_WITH_BYTEPS"

    def __init__(self) -> None:
        super().__init__()
        self._names = (f"monolith.broadcast.{number}" for number in itertools.count())
        self._horovod: Horovod | None = None

    def allgather(self, tensor: Tensor) -> Tensor:
        """Returns the rows of all ranks, in the order of the ranks; public releases of BytePS lack this call."""
        if not hasattr(self._library, "allgather"):
            raise UnimplementedError(
                f"collective: this {self.module_name} has no allgather; unset {self.variable} to use torch.distributed"
            )
        return super().allgather(tensor)

    def broadcast(self, tensor: Tensor, root_rank: int) -> Tensor:
        """Returns the tensor of the root, as a new one."""
        if hasattr(self._library, "broadcast"):
            return super().broadcast(tensor, root_rank)
        result = tensor.detach().clone()
        # BytePS ties a name to one shape permanently, so every call has a name of its own, the same on all ranks.
        named = {next(self._names): result}
        self._in_turn("broadcast", lambda library: library.broadcast_parameters(named, root_rank))
        return result

    def broadcast_parameters(self, tensors: Mapping[str, Tensor], root_rank: int) -> None:
        """Overwrites these tensors with those of the root; a variable may select Horovod, or skip the broadcast."""
        choice = environment.get(_BROADCAST_VARIABLE) or "1"
        if choice == "0":
            if self._horovod is None:
                self._horovod = Horovod()
            self._horovod.init(timeout_seconds=0)
            self._horovod.broadcast_parameters(tensors, root_rank)
        elif choice != "-1":
            super().broadcast_parameters(tensors, root_rank)

    def allreduce(self, tensor: Tensor) -> Tensor:
        """Returns the sum of all ranks' tensors, as a new one."""
        # A name is tied to one shape, and is reused: the library keeps memory for each name.
        name = f"monolith.sum.{tensor.dtype}.{list(tensor.shape)}"
        total: Tensor = self._in_turn(
            "allreduce", lambda library: library.push_pull(tensor.detach(), average=False, name=name)
        )
        return total

    def alltoall(
        self,
        tensor: Tensor,  # noqa: ARG002 - the signature of the library
        sizes: Sequence[int],  # noqa: ARG002
    ) -> tuple[Tensor, list[int]]:
        """Raises an error: BytePS has no such call."""
        _ = self._library
        raise UnimplementedError(
            f"collective: {self.module_name} has no alltoall; unset {self.variable} to use torch.distributed"
        )

    def shutdown(self) -> None:
        """Leaves the run, and that of Horovod if it was joined."""
        super().shutdown()
        if self._horovod is not None:
            self._horovod.shutdown()
            self._horovod = None
