"""The item pool in files of ByteDance Monolith's format: one ``ChannelCache`` message for each channel.

    <folder>/model.ckpt-<step>_item_pool_<worker>_<shard>_<number of workers>      TFRecord

A column becomes a feature by its kind: rows of ids ``fid_v2_list``, one number ``int64_value`` or ``float_value``,
vectors ``int64_list`` or ``float_list``, rows of floats ``float_lists``, strings ``bytes_list``.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import torch
from google.protobuf.message import DecodeError
from torch import Tensor

from monolith.data.batch import Batch
from monolith.data.conversions import signed
from monolith.data.protos.example_pb2 import ChannelCache, Feature, FidList
from monolith.data.records.framing import Framing
from monolith.data.records.reader import RecordReader
from monolith.data.records.writer import RecordWriter
from monolith.errors import DataLossError, NotFoundError
from monolith.ids import v1_to_v2
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monolith.data.batch import ColumnValues
    from monolith.data.operators.item_pool import ItemPool, Numbers

_MAX_CHANNEL_BYTES = 2**31 - 1  # what protobuf can read


def save_pool(pool: ItemPool, folder: str, *, step: int, worker: int = 0, num_workers: int = 1) -> str:
    """Writes the pool of a worker atomically to any fsspec path, and returns the path.

    For checkpoints `ItemPool.state_dict` is much faster; this function is for exchange with upstream.
    """
    path = posixpath.join(folder, f"model.ckpt-{step}_item_pool_{worker}_0_{num_workers}")
    with RecordWriter(path, Framing.TFRECORD) as writer:
        for channel, items, features in pool.channels():
            message = ChannelCache(channel_id=channel)
            makers = {name: _maker(name, values) for name, values in features.items()}
            for place, (id_, seen, drawn) in enumerate(
                zip(items.ids.tolist(), items.seen.tolist(), items.drawn.tolist(), strict=True)
            ):
                data = message.feature_datas.add(gid=id_, origin_cnt=seen, sample_cnt=drawn)
                for number, (name, make) in enumerate(makers.items()):
                    make(data.feature_columns.add(name=name, id=number).feature, place)
            writer.write(message.SerializeToString())
    return path


def restore_pool(pool: ItemPool, folder: str, *, step: int, worker: int = 0) -> list[str]:
    """Fills the pool from the files of this worker, or, if there were fewer, of worker ``worker mod number``.

    Upstream may write a pool in several shards; all of them are read, and the items of a channel that is in more than
    one are joined in the order of the shards. Nothing is restored unless everything can be read.

    Returns:
        The paths that were read.

    Raises:
        NotFoundError: there is no file of this step, or not every shard.
        DataLossError: a file that is damaged, or that lacks a column of the pool.
    """
    names = _shards_of(folder, step, worker)
    paths = [posixpath.join(folder, name) for name in names]
    channels: dict[int, ChannelCache] = {}
    for path in paths:
        for message in _channels_in(path):
            channels.setdefault(message.channel_id, ChannelCache()).MergeFrom(message)
    place = paths[0] if len(paths) == 1 else f"{paths[0]} and the {len(paths) - 1} other shards"
    restored = [_channel_of(pool, message, place) for message in channels.values()]
    for channel, ids, counts, features in restored:
        pool.restore_channel(channel, ids, counts, features)
    return paths


def _shards_of(folder: str, step: int, worker: int) -> list[str]:
    """Returns the names of the files that hold the pool for this worker, in the order of their shards."""
    system, root = fsspec.core.url_to_fs(folder)
    pattern = re.compile(rf"model\.ckpt-{step}_item_pool_(\d+)_(\d+)_(\d+)$")
    names = [posixpath.basename(str(path)) for path in system.ls(root, detail=False)] if system.exists(root) else []
    matches = [match for name in names if (match := pattern.match(name))]
    shard_files = [(int(match[1]), int(match[2]), int(match[3]), match[0]) for match in matches]
    if not shard_files:
        raise NotFoundError(f"{folder}: no item pool of step {step}; the files there are {sorted(names)[:10]}")
    old_workers = max(number for _, _, number, _ in shard_files)
    source = worker % old_workers
    shards = {shard: name for owner, shard, number, name in shard_files if (owner, number) == (source, old_workers)}
    if not shards:
        raise NotFoundError(f"{folder}: item pool of step {step} lacks the file of worker {source} of {old_workers}")
    if lost := sorted(set(range(max(shards))) - set(shards)):
        raise NotFoundError(
            f"{folder}: item pool of step {step} lacks shard {lost[0]} of worker {source}; there are {sorted(shards)}"
        )
    return [shards[shard] for shard in sorted(shards)]


def _channels_in(path: str) -> Iterator[ChannelCache]:
    with RecordReader(path, Framing.TFRECORD, max_record_bytes=_MAX_CHANNEL_BYTES) as reader:
        for record in reader:
            try:
                yield ChannelCache.FromString(record)
            except DecodeError as error:
                raise DataLossError(f"{path}: a record is no ChannelCache: {error}") from error


def _channel_of(
    pool: ItemPool, message: ChannelCache, path: str
) -> tuple[int, Numbers, tuple[Numbers, Numbers], Batch]:
    """Returns the arguments of `ItemPool.restore_channel`."""
    datas = message.feature_datas
    ids = np.array([data.gid for data in datas], dtype=np.int64)
    if len(np.unique(ids)) != len(ids):
        raise DataLossError(f"{path}: channel {message.channel_id} has an item twice")
    counts = (
        np.array([data.origin_cnt for data in datas], dtype=np.int64),
        np.array([data.sample_cnt for data in datas], dtype=np.int64),
    )
    by_name: list[dict[str, Feature]] = []
    for data in datas:
        own = {named.name: named.feature for named in data.feature_columns}
        for number in data.fids:  # flat v1 ids, as pools of instances have them
            slot = number % (1 << 64) >> 54
            own.setdefault(f"fc_slot_{slot}", Feature()).fid_v1_list.value.append(number % (1 << 64))
        by_name.append(own)
    columns: dict[str, ColumnValues] = {}
    for name in pool.columns:
        features = [own.get(name) for own in by_name]
        kinds = {feature.WhichOneof("type") for feature in features if feature is not None} - {None}
        if len(kinds) != 1:
            got = ", ".join(sorted(map(str, kinds))) or "nothing"
            place = f"{path}: column {name!r} of channel {message.channel_id}"
            raise DataLossError(f"{place} must be of one kind, got {got}")
        columns[name] = _column([feature or Feature() for feature in features], str(kinds.pop()), f"{path}: {name!r}")
    return message.channel_id, ids, counts, Batch(columns, num_rows=len(ids))


def _maker(name: str, values: ColumnValues) -> Callable[[Feature, int], None]:
    """Returns a function that writes the value of a row into a feature."""
    if isinstance(values, list):
        return lambda feature, row: feature.bytes_list.value.append(values[row])
    if isinstance(values, Ragged):
        lists = values.to_lists()
        if values.dtype == torch.int64:
            # Messages store ids as unsigned; an empty list still defines its kind.
            unsigned = [[number % (1 << 64) for number in row] for row in lists]
            return lambda feature, row: feature.fid_v2_list.MergeFrom(FidList(value=unsigned[row]))
        return lambda feature, row: feature.float_lists.list.add().value.extend(lists[row])
    whole = not values.is_floating_point()
    numbers: Any = values.tolist()
    if values.ndim == 1:
        return lambda feature, row: setattr(feature, "int64_value" if whole else "float_value", numbers[row])
    if values.ndim == 2:
        field = "int64_list" if whole else "float_list"
        return lambda feature, row: getattr(feature, field).value.extend(numbers[row])
    raise TypeError(f"item pool: column {name!r} cannot be written: expected up to 2 dims, got {values.ndim}")


def _column(features: list[Feature], kind: str, place: str) -> ColumnValues:
    if kind == "bytes_list":
        return [feature.bytes_list.value[0] if feature.bytes_list.value else b"" for feature in features]
    if kind in {"int64_value", "float_value"}:
        dtype = torch.int64 if kind == "int64_value" else torch.float32
        return torch.tensor([getattr(feature, kind) for feature in features], dtype=dtype)
    if kind in {"fid_v1_list", "fid_v2_list"}:
        numbers = [[signed(number) for number in getattr(feature, kind).value] for feature in features]
        ids = Ragged.from_lists(numbers)
        return ids if kind == "fid_v2_list" else ids.with_values(v1_to_v2(ids.flat_values))
    if kind == "float_lists":
        lists = [[value for floats in feature.float_lists.list for value in floats.value] for feature in features]
        return Ragged.from_lists(lists, dtype=torch.float32)
    if kind not in {"int64_list", "float_list"}:
        raise DataLossError(f"{place}: features of kind {kind} cannot be kept in a pool")
    rows = [list(getattr(feature, kind).value) for feature in features]
    if len({len(row) for row in rows}) > 1:
        raise DataLossError(f"{place}: vectors of different lengths: {sorted({len(row) for row in rows})[:5]}")
    tensor: Tensor = torch.tensor(rows, dtype=torch.int64 if kind == "int64_list" else torch.float32)
    return tensor
