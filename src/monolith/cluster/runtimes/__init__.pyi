from monolith.cluster.addresses import get_local_host as get_local_host

from .mlp import DataService as DataService
from .mlp import MLPEnv as MLPEnv
from .mlp import mlp_pass as mlp_pass
from .mpi import add_mpi_exception_hook as add_mpi_exception_hook
from .mpi import mpi_rank as mpi_rank
from .primus import close_channels as close_channels
from .primus import create_primus_save_point as create_primus_save_point
from .primus import maybe_finish_application as maybe_finish_application
from .primus import maybe_kill_application as maybe_kill_application
from .ray import NAMESPACE as NAMESPACE
from .ray import load_ray as load_ray
