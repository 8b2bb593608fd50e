from monolith.serving.served_model import ServedModel as ServedModel

from .config import LimitsConfig as LimitsConfig
from .config import ServerConfig as ServerConfig
from .metrics import ServingMetrics as ServingMetrics
from .registry import ModelRegistry as ModelRegistry
from .request_queue import OverloadedError as OverloadedError
from .request_queue import RequestQueueConfig as RequestQueueConfig
from .server import ModelServer as ModelServer
