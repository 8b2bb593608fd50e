"""The join of the row `online_joiner` in Bytewax, as its users write it: state by key, timers, and its recovery.

    python benchmarks/suites/online/bytewax_join.py FOLDER

prints the events of a second of processor time. Its timers are those of the machine's clock, so that windows close by
that; line ids, numbers of examples, late actions and duplicates, which the joiner has, are not implemented.
"""

from __future__ import annotations

import gc
import struct
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import run_main

from monolith.online.joiner.protos.join_event_pb2 import JoinEvent

_LENGTH = struct.Struct("<Q")
_BATCH_RECORDS = 4096
_LABEL = b"\xaa\x06\x04"
_WINDOW = timedelta(seconds=1)
_SNAPSHOTS_EVERY = timedelta(seconds=1)


class _Records(StatefulSourcePartition):  # type: ignore[misc]  # Bytewax is not installed where types are checked
    def __init__(self, path: Path, at: int | None) -> None:
        self._data, self._at = path.read_bytes(), at or 0

    def next_batch(self) -> list[bytes]:
        found: list[bytes] = []
        if self._at >= len(self._data):
            raise StopIteration
        while self._at < len(self._data) and len(found) < _BATCH_RECORDS:
            begin = self._at + _LENGTH.size
            (length,) = _LENGTH.unpack_from(self._data, self._at)
            found.append(self._data[begin : begin + length])
            self._at = begin + length
        return found

    def snapshot(self) -> int:
        return self._at


class _File(FixedPartitionedSource):  # type: ignore[misc]  # as above
    def __init__(self, path: Path) -> None:
        self._path = path

    def list_parts(self) -> list[str]:
        return ["only"]

    def build_part(self, _step: str, _part: str, at: int | None) -> _Records:
        return _Records(self._path, at)


class _Written(StatefulSinkPartition):  # type: ignore[misc]  # as above
    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write_batch(self, examples: list[bytes]) -> None:
        self._file.write(b"".join([_LENGTH.pack(len(each)) + each for each in examples]))

    def snapshot(self) -> int:
        self._file.flush()
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


class _Output(FixedPartitionedSink):  # type: ignore[misc]  # as above
    def __init__(self, path: Path) -> None:
        self._path = path

    def list_parts(self) -> list[str]:
        return ["only"]

    def part_fn(self, _key: str) -> int:
        return 0

    def build_part(self, _step: str, _part: str, _at: int | None) -> _Written:
        return _Written(self._path)


class _Joining(op.StatefulLogic):  # type: ignore[misc]  # as above
    """What is known of one key."""

    def __init__(self, resumed: tuple[bytes, bool, bool, datetime] | None) -> None:
        kept = resumed or (b"", False, False, datetime.now(UTC) + _WINDOW)
        self._sample, self._is_out, self._has_action, self._due = kept

    def on_item(self, event: tuple[bytes, tuple[int, ...]]) -> tuple[list[bytes], bool]:
        sample, actions = event
        self._sample = self._sample or sample
        self._has_action = self._has_action or bool(actions)
        if self._sample and self._has_action and not self._is_out:
            self._is_out = True
            return [_example(self._sample, 1.0)], False
        return [], False

    def on_notify(self) -> tuple[list[bytes], bool]:
        return ([] if self._is_out or not self._sample else [_example(self._sample, 0.0)]), True

    on_eof = on_notify

    def notify_at(self) -> datetime:
        return self._due

    def snapshot(self) -> tuple[bytes, bool, bool, datetime]:
        return (self._sample, self._is_out, self._has_action, self._due)


def _example(sample: bytes, label: float) -> bytes:
    return sample + _LABEL + struct.pack("<f", label)


def _events(records: list[bytes]) -> list[tuple[str, tuple[bytes, tuple[int, ...]]]]:
    found = []
    for record in records:
        event = JoinEvent.FromString(record)
        found.append((f"{event.request_id.hex()}-{event.item_id}", (event.sample, tuple(event.actions))))
    return found


def run(folder: Path) -> float:
    """Seconds of processor time of the process for the files of a folder."""
    flow = Dataflow("join")
    shown = op.flat_map_batch("shown", op.input("impressions", flow, _File(folder / "impressions")), _events)
    done = op.flat_map_batch("done", op.input("actions", flow, _File(folder / "actions")), _events)
    op.output("examples", op.stateful("join", op.merge("both", shown, done), _Joining), _Output(folder / "bytewax"))
    recovery = folder / "recovery"
    recovery.mkdir()
    init_db_dir(recovery, 1)
    gc.freeze()  # what the imports left is not looked through again and again
    begun = time.process_time()
    run_main(flow, epoch_interval=_SNAPSHOTS_EVERY, recovery_config=RecoveryConfig(recovery))
    return time.process_time() - begun


if __name__ == "__main__":
    sys.stdout.write(f"{run(Path(sys.argv[1]))}\n")
