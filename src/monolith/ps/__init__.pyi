from monolith.job import JobClient as JobClient

from .client.cluster import PsCluster as PsCluster
from .client.store import PsStore as PsStore
from .dense.client import DenseClient as DenseClient
from .dense.shard import DenseShard as DenseShard
from .places import ServerPlace as ServerPlace
from .places import StandbyServers as StandbyServers
from .places import assign_places as assign_places
from .places import find_place as find_place
from .places import measure_throughput as measure_throughput
from .places import stop_servers as stop_servers
from .server.server import PsServer as PsServer
