"""Collective calls over Horovod or BytePS, for sites that have them; imported when they are initialised.

Both are given what their PyTorch modules document. Neither was run against the real library: Horovod does not build
against the torch that we test with, and BytePS is not to be had there.
"""

from __future__ import annotations

import importlib
import itertools
from typing import TYPE_CHECKING, Any

import torch

from monolith import environment
from monolith.collective.key_store import MemoryKeyStore
from monolith.collective.line import Line
from monolith.collective.wire import LibraryWire, exchanging
from monolith.errors import FailedPreconditionError, UnimplementedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from monolith.collective.key_store import KeyStore


_BROADCAST_VARIABLE = "MONOLITH_WITH_BYTEPS_BCAST"
"""With BytePS: 0 leaves the broadcast of weights to Horovod, -1 leaves it out, anything else is BytePS."""


class Horovod:
    """Passes calls through to ``horovod.torch``."""

    module_name = "horovod.torch"
    variable = "MONOLITH_WITH_HOROVOD"

    def __init__(self) -> None:
        self._module: Any = None
        self._line: Line | None = None
        self._alone = MemoryKeyStore()

    def init(self, timeout_seconds: float) -> None:  # noqa: ARG002 - these libraries have time limits of their own
        """Imports the library and joins the run; its own settings say how long that may take."""
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

    def training_line(self) -> Line:
        """What all calls of training go through."""
        _ = self._library
        if self._line is None:
            self._line = Line("training", LibraryWire(self))
        return self._line

    def saving_line(self) -> Line:
        """Refused: the library has one order of calls."""
        raise UnimplementedError(
            f"collective: {self.module_name} has no second line of calls for what happens beside training; unset "
            f"{self.variable} to use torch.distributed"
        )

    def rank(self) -> int:
        """Number of this process, from 0."""
        return int(self._library.rank())

    def size(self) -> int:
        """Number of processes."""
        return int(self._library.size())

    def allgather(self, tensor: Tensor) -> Tensor:
        """The rows of all ranks, in the order of the ranks."""
        gathered: Tensor = self._in_turn("allgather", lambda library: library.allgather(tensor.detach()))
        return gathered

    def broadcast(self, tensor: Tensor, root_rank: int) -> Tensor:
        """The tensor of the root, as a new one."""
        received: Tensor = self._in_turn("broadcast", lambda library: library.broadcast(tensor.detach(), root_rank))
        return received

    def broadcast_parameters(self, tensors: Mapping[str, Tensor], root_rank: int) -> None:
        """Overwrites these tensors with those of the root."""
        self._in_turn("broadcast_parameters", lambda library: library.broadcast_parameters(dict(tensors), root_rank))

    def allreduce(self, tensor: Tensor) -> Tensor:
        """The sum of all ranks' tensors, as a new one."""
        total: Tensor = self._in_turn("allreduce", lambda library: library.allreduce(tensor.detach(), op=library.Sum))
        return total

    def alltoall(self, tensor: Tensor, sizes: Sequence[int]) -> tuple[Tensor, list[int]]:
        """The rows that each rank has for this one, in the order of the ranks, and their numbers."""
        splits = torch.tensor(sizes, dtype=torch.int32)
        rows, received = self._in_turn("alltoall", lambda library: library.alltoall(tensor.detach(), splits))
        return rows, received.tolist()

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        if hasattr(self._library, "barrier"):
            self._in_turn("barrier", lambda library: library.barrier())
        else:
            self.allreduce(torch.zeros(1))  # no rank has the sum before all have come

    def _in_turn(self, what: str, call: Callable[[Any], Any]) -> Any:
        """Makes a call of the library when those before it are done."""
        library = self._library
        return self.training_line().run(lambda: exchanging(call)(library), what)

    def key_store(self) -> KeyStore:
        """Neither library has one.

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
                f"collective: {self.variable} asks for {self.module_name}, which cannot be imported: {error}; install "
                f"{self.module_name.partition('.')[0]} with PyTorch support, or unset {self.variable} to use "
                "torch.distributed",
                name=error.name,
            ) from error


class BytePs(Horovod):
    """Passes calls through to ``byteps.torch``; what a release lacks is done by what it has, or refused by name."""

    module_name = "byteps.torch"
    variable = "MONOLITH_WITH_BYTEPS"

    def __init__(self) -> None:
        super().__init__()
        self._names = (f"monolith.broadcast.{number}" for number in itertools.count())
        self._horovod: Horovod | None = None

    def allgather(self, tensor: Tensor) -> Tensor:
        """The rows of all ranks, in the order of the ranks; public releases of BytePS do not have it."""
        if not hasattr(self._library, "allgather"):
            raise UnimplementedError(
                f"collective: this {self.module_name} has no allgather; unset {self.variable} to use torch.distributed"
            )
        return super().allgather(tensor)

    def broadcast(self, tensor: Tensor, root_rank: int) -> Tensor:
        """The tensor of the root, as a new one."""
        if hasattr(self._library, "broadcast"):
            return super().broadcast(tensor, root_rank)
        result = tensor.detach().clone()
        # BytePS ties a name to one shape for good, so every call has a name of its own, the same on all ranks.
        named = {next(self._names): result}
        self._in_turn("broadcast", lambda library: library.broadcast_parameters(named, root_rank))
        return result

    def broadcast_parameters(self, tensors: Mapping[str, Tensor], root_rank: int) -> None:
        """Overwrites these tensors with those of the root; by Horovod, or not at all, where a variable says so."""
        choice = environment.get(_BROADCAST_VARIABLE) or "1"
        if choice == "0":
            if self._horovod is None:
                self._horovod = Horovod()
            self._horovod.init(timeout_seconds=0)
            self._horovod.broadcast_parameters(tensors, root_rank)
        elif choice != "-1":
            super().broadcast_parameters(tensors, root_rank)

    def allreduce(self, tensor: Tensor) -> Tensor:
        """The sum of all ranks' tensors, as a new one."""
        # A name belongs to one shape for good, and is used again: the library keeps memory for each.
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
        """Refused: BytePS has none."""
        _ = self._library
        raise UnimplementedError(
            f"collective: {self.module_name} has no alltoall; unset {self.variable} to use torch.distributed"
        )

    def shutdown(self) -> None:
        """Leaves the run, and Horovod's where it was joined."""
        super().shutdown()
        if self._horovod is not None:
            self._horovod.shutdown()
            self._horovod = None
