from .config import Recovered as Recovered
from .config import RecoveryConfig as RecoveryConfig
