from .server import PsServer as PsServer
