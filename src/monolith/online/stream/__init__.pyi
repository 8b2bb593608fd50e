from .admission import StreamConfig as StreamConfig
from .admission import StreamCounts as StreamCounts
from .dataset import ExampleStream as ExampleStream
from .watching import StreamHook as StreamHook
