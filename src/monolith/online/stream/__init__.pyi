from .admission import StreamConfig as StreamConfig
from .admission import StreamCounts as StreamCounts
from .dataset import ExampleStream as ExampleStream
from .dataset import StreamHook as StreamHook
