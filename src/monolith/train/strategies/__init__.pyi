from .ranks import Ranks as Ranks
from .servers import ParameterServers as ParameterServers
from .single import SingleProcess as SingleProcess
from .strategy import Strategy as Strategy
