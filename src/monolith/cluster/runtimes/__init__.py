"""The schedulers that start our processes: Primus, MLP, Open MPI.

`primus` imports grpc only when there is a master to call.
"""

from __future__ import annotations

from monolith.cluster.addresses import get_local_host
from monolith.cluster.runtimes.mlp import DataService, MLPEnv, mlp_pass
from monolith.cluster.runtimes.mpi import add_mpi_exception_hook, mpi_rank
from monolith.cluster.runtimes.primus import (
    close_channels,
    create_primus_save_point,
    maybe_finish_application,
    maybe_kill_application,
)

__all__ = [
    "DataService",
    "MLPEnv",
    "add_mpi_exception_hook",
    "close_channels",
    "create_primus_save_point",
    "get_local_host",
    "maybe_finish_application",
    "maybe_kill_application",
    "mlp_pass",
    "mpi_rank",
]
