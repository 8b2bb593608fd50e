from .client import DenseClient as DenseClient
from .push import PreparedPush as PreparedPush
from .wire import DenseServers as DenseServers
