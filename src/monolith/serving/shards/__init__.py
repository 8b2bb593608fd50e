"""Shards: rows divided among processes by bucket, and the clients that look them up.

`served_shard.py` starts a shard, `shard_server.py` serves its `shard_tables.py`. `sharded_rows.py` looks rows up at all
shards: `replicas.py` resolves their addresses, `channels.py` calls the shards and hedges requests.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
