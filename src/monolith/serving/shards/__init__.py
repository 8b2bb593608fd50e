"""Shards: rows that are divided among processes by their buckets, and who asks them.

`served_shard.py` starts one, `shard_server.py` answers for it from `shard_tables.py`. `remote_rows.py` looks rows up at
all of them: `replicas.py` says where they are, `channels.py` and `replica_race.py` ask another one in time.
"""

from __future__ import annotations

__all__: list[str] = []
