"""The schedulers that start our processes: MLP, Open MPI."""

from __future__ import annotations

from monolith.cluster.runtimes.mlp import MLPEnv
from monolith.cluster.runtimes.mlp_roles import DataService, mlp_pass
from monolith.cluster.runtimes.mpi import add_mpi_exception_hook, mpi_rank

__all__ = ["DataService", "MLPEnv", "add_mpi_exception_hook", "mlp_pass", "mpi_rank"]
