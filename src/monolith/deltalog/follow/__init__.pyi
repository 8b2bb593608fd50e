from .base_state import BaseState as BaseState
from .base_state import schemas_of as schemas_of
from .base_state import stores_of_log as stores_of_log
from .follower import Follower as Follower
from .follower import Staleness as Staleness
