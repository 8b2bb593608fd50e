"""Device of a model: the CPU, or the GPU of this process.

Tables are in host memory: `Embeddings` reads and pools rows there, copies the outputs to its device, and takes their
gradients back. With `DeviceConfig.tables` they are in the memory of the GPU, and rows do not leave it. What a batch has
besides the ids of the slots goes to the device, too, on a separate stream, while earlier steps compute.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from monolith import environment
from monolith.config import Config, config, require_at_least
from monolith.data import Batch
from monolith.data.prefetch import SideStreams
from monolith.errors import FailedPreconditionError
from monolith.tables import CudaStore
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from monolith.data.prefetch import StagedTensors
    from monolith.tables import Store, TableConfig
    from monolith.train._model_step import StepResult
    from monolith.train.config.trainer_config import TrainerConfig
    from monolith.train.parameters.params import Params


TABLES_ON_SERVERS: Final = (
    "rows are on parameter servers, and device.tables (train.use_gpu_emb_table) keeps them on the GPU of one process;"
    " leave it out, or train in one process, without servers"
)


@config
class DeviceConfig(Config):
    """Device of a model: of its dense part, and of its tables."""

    gpu: bool = False
    """Compute the dense part on a GPU, the one with the number (rank on this machine) // processes_per_gpu; tables stay
    in the memory of the host, unless `tables` is set."""
    tables: bool = False
    """Keep rows and optimizer state in the memory of that GPU, see ``docs/how-to/gpu-tables.md``; all of them must fit.
    For a run of one process."""
    processes_per_gpu: int = 1
    """Processes of this machine that share a GPU."""

    def __post_init__(self) -> None:
        require_at_least(self, 1, "processes_per_gpu")
        if self.processes_per_gpu > 1 and not self.gpu:
            raise ValueError(
                f"DeviceConfig: processes_per_gpu={self.processes_per_gpu} is about processes that share a GPU, and gpu"
                " is False; set gpu (enable_gpu_training), or leave it out"
            )
        if self.tables and not self.gpu:
            raise ValueError(
                "DeviceConfig: tables=True keeps tables on the GPU of the dense part, and gpu is False; set gpu"
                " (enable_gpu_training), or leave tables (train.use_gpu_emb_table) out"
            )


class StagedFeatures(NamedTuple):
    """A batch whose copies to a device are in flight."""

    features: Any
    """The batch, with the copies in it."""
    copies: StagedTensors

    def receive(self) -> None:
        """Makes the current streams of this thread wait for the copies, not the thread; before they are used."""
        self.copies.receive()


class DevicePlacement:
    """The device of a session's model. `stage` may be called by any thread, the rest by the training thread.

    Args:
        device: Device of the dense part.
        has_tables: Whether it has the tables, too.
    """

    def __init__(self, device: torch.device, *, has_tables: bool = False) -> None:
        self.device = device
        self.has_tables = has_tables
        self._of_thread = threading.local()

    def place(self, model: nn.Module) -> None:
        """Moves weights and buffers of a model there; its rows stay where they are."""
        model.to(self.device)

    def store_factory(self) -> Callable[[Mapping[str, TableConfig]], Store] | None:
        """Returns a function that makes stores with their rows on the device; None: rows are in host memory."""
        return partial(CudaStore, device=self.device) if self.has_tables else None

    def stage(self, features: Any, *, host: Collection[str]) -> StagedFeatures:
        """Begins to copy a batch to the device.

        Args:
            features: Tensors, ragged ones among them, in containers; what is no tensor stays as it is.
            host: Names of columns that stay in the memory of the host: ids are looked up there.
        """
        tensors: list[Tensor] = []

        def note(tensor: Tensor) -> Tensor:
            tensors.append(tensor)
            return tensor

        _mapped(features, note, host)
        copies = self._streams.stage(tensors, self.device)
        moved = iter(copies.tensors)
        return StagedFeatures(_mapped(features, lambda _: next(moved), host), copies)

    def to_host(self, result: StepResult) -> StepResult:
        """Returns the result in host memory, for callers that requested predictions."""
        result.loss = None if result.loss is None else result.loss.cpu()
        result.predictions = _mapped(result.predictions, lambda tensor: tensor.cpu(), ())
        result.label = _mapped(result.label, lambda tensor: tensor.cpu(), ())
        return result

    @property
    def _streams(self) -> SideStreams:
        if not hasattr(self._of_thread, "streams"):
            self._of_thread.streams = SideStreams()
        streams: SideStreams = self._of_thread.streams
        return streams


def placement_of(settings: DeviceConfig) -> DevicePlacement | None:
    """Chooses the GPU of this process and makes it current; returns None if the dense part runs on the CPU.

    Raises:
        FailedPreconditionError: CUDA or the GPU is not available; the message gives a fix.
        ValueError: the launcher's variable is not a number.
    """
    if not settings.gpu:
        return None
    if not torch.cuda.is_available():
        built = "this torch was built without CUDA" if torch.version.cuda is None else "CUDA finds no GPU here"
        raise FailedPreconditionError(
            f"enable_gpu_training: {built} (torch {torch.__version__}); leave the option out to train on the CPU, or"
            " install a build of torch for CUDA on a machine with a GPU"
        )
    device = device_of_rank(_local_rank(), settings.processes_per_gpu, num_devices=torch.cuda.device_count())
    torch.cuda.set_device(device)  # for what names none, such as NCCL
    return DevicePlacement(device, has_tables=settings.tables)


def with_gpu_tables(config: TrainerConfig, params: Params) -> TrainerConfig:
    """Returns the config with the effect of a task's parameter ``train.use_gpu_emb_table``: tables on the GPU.

    Raises:
        ValueError: the dense part is not on a GPU.
    """
    if config.device.tables or not _wants_gpu_tables(params):
        return config
    return dataclasses.replace(config, device=dataclasses.replace(config.device, tables=True))


def require_gpu_tables(params: Params, placement: DevicePlacement | None) -> None:
    """Refuses to train a task that requests tables on the GPU without them.

    Raises:
        ValueError: the session was not made by a trainer, which places them.
    """
    if _wants_gpu_tables(params) and (placement is None or not placement.has_tables):
        raise ValueError(
            f"task {params.name}: parameter train.use_gpu_emb_table=True needs a Trainer, which places the tables;"
            " train with Trainer(task, TrainerConfig(device=DeviceConfig(gpu=True))), or leave it at False"
        )


def _wants_gpu_tables(params: Params) -> bool:
    """Returns whether a task's parameters request tables on the GPU; custom tasks may not have the parameter."""
    return "train" in params and "use_gpu_emb_table" in params.train and bool(params.train.use_gpu_emb_table)


def device_of_rank(local_rank: int, processes_per_gpu: int, *, num_devices: int) -> torch.device:
    """Returns the GPU of a process."""
    number = local_rank // processes_per_gpu
    if number >= num_devices:
        raise FailedPreconditionError(
            f"enable_gpu_training: local rank {local_rank} with processes_per_gpu={processes_per_gpu} needs GPU"
            f" {number}, and this process sees {num_devices}; start at most {num_devices * processes_per_gpu} processes"
            f" on this machine, or set processes_per_gpu to {-(-(local_rank + 1) // num_devices)} or more"
        )
    return torch.device("cuda", number)


def _local_rank() -> int:
    text = environment.first_of("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK") or "0"
    try:
        rank = int(text)
    except ValueError:
        rank = -1
    if rank < 0:
        raise ValueError(f"enable_gpu_training: LOCAL_RANK must be an integer >= 0, got {text!r}")
    return rank


def _mapped(value: Any, move: Callable[[Tensor], Tensor], host: Collection[str]) -> Any:
    """Returns a structure with each of its tensors replaced; columns of these names are unchanged."""
    if isinstance(value, Tensor):
        return move(value)
    if isinstance(value, Ragged):
        return Ragged(_mapped(value.values, move, host), move(value.row_splits), validate=False)
    if isinstance(value, Mapping):
        columns = {name: column if name in host else _mapped(column, move, host) for name, column in value.items()}
        return Batch(columns, num_rows=value.num_rows, texts=value.texts) if isinstance(value, Batch) else columns
    if isinstance(value, list | tuple):
        items = [_mapped(item, move, host) for item in value]
        if isinstance(value, list):
            return items
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value
