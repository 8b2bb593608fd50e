from .admission import StreamCounts as StreamCounts
from .config import StreamConfig as StreamConfig
from .dataset import ExampleStream as ExampleStream
from .watching import StreamHook as StreamHook
