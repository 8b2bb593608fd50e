from .calls import stamps_from_plain as stamps_from_plain
from .calls import stamps_to_plain as stamps_to_plain
from .exchange import AlltoallMetrics as AlltoallMetrics
from .store import OwnRows as OwnRows
from .store import ShardedStore as ShardedStore
from .store import own_cut as own_cut
from .store import sharded_stores as sharded_stores
