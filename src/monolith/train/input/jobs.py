"""The job whose input this process reads: of a single process, or of one rank of a synchronous run.

Ranks read files of one queue that they share, or a fixed share each. Changes of the queue are a log, which every rank
reads, and to which a rank that needs a file appends. The rendezvous store of the ranks keeps the log, entry by entry;
of two writers of the same entry one wins. So no rank serves the others, and all have the same state. The log lasts for
one start of the run; a checkpoint has the resulting state.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from monolith.data.file_queue import HostedFileQueue
from monolith.data.kafka import KafkaPosition, merge_positions
from monolith.data.sources import FilePatterns
from monolith.errors import InvalidArgumentError, UnavailableError
from monolith.job import OF_ONE_PROCESS, JobQueues

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.collective import KeyStore
    from monolith.data.file_queue import Event, FileAssignments, FileQueue
    from monolith.data.sources import Paths, StorageOptions
    from monolith.tables import BatchStamp

_T = TypeVar("_T")

_OWNER = "local"
"""Owner of the pushes of a finished worker, in the saved state."""


class LocalJob:
    """A job of one process; a `Stateful` for ``TrainState(extra={"job": ...})``. Any thread may call it.

    With its state a run of several processes can resume in one process, and vice versa.

    Args:
        num_workers: Number of workers of the config.
        applied: Worker -> number of its last batch that is in the rows.
    """

    def __init__(self, *, num_workers: int = 1, applied: Callable[[], Mapping[int, int]]) -> None:
        self._num_workers = num_workers
        self._applied = applied
        self._lock = threading.Lock()  # guards what follows
        self._queues = JobQueues()
        self.num_shares = num_workers
        """Shares that the input has: the number of workers that the run began with."""
        self._finished: dict[int, dict[str, dict[int, int]]] = {}

    def file_queue(
        self, paths: Paths, *, seed: int | None = None, storage_options: StorageOptions = None, name: str = "files"
    ) -> FileQueue:
        """Returns a queue as `monolith.ps.JobClient.file_queue` does."""
        patterns = FilePatterns(paths, seed=seed, storage_options=storage_options)
        return HostedFileQueue(patterns, lambda action: self._decide(lambda: action(self._open(name, patterns))))

    def finish(self, worker: int, last: int | None = None) -> None:
        """Records that the input of a worker has ended.

        Args:
            worker: Its number.
            last: Number of its last batch, -1 if it had none; None: all of its batches are in the rows.
        """
        seq = self._applied().get(worker, -1) if last is None else last
        self._decide(lambda: self._happen("finish", [worker, seq]))

    def adopt_worker(self) -> int | None:
        """Returns a worker of an earlier run whose input has not ended, or None."""
        return self._decide(self._adopt)

    def reset(self) -> None:
        """Restarts the run from scratch."""
        with self._lock:
            self._queues.load_state_dict({})
            self._finished.clear()
            self.num_shares = self._num_workers

    def state_dict(self) -> dict[str, Any]:
        """Returns the state in the form of a job's."""
        return self._decide(self._saved)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a checkpoint, of this process alone or of a job: its shares of the input stay as many."""
        self._load(state)

    def _load(self, state: Mapping[str, Any]) -> None:
        with self._lock:
            self.num_shares = int(state.get("num_shares", state["num_workers"]))
            self._queues.load_state_dict(state["queues"])
            self._finished = {
                int(worker): {owner: {int(origin): seq for origin, seq in seqs.items()} for owner, seqs in had.items()}
                for worker, had in state["finished"].items()
            }

    # What a job of several processes does otherwise

    def _decide(self, action: Callable[[], _T]) -> _T:
        """Calls a function that reads the state and decides on an action, under the lock."""
        with self._lock:
            return action()

    def _tell(self, kind: str, content: Any) -> None:
        """Called before a change of the state. REQUIRES: inside `_decide`."""

    # Inside `_decide`

    def _happen(self, kind: str, content: Any) -> None:
        self._tell(kind, content)
        self._apply(kind, content)

    def _apply(self, kind: str, content: Any) -> None:
        """Applies a change to the state, of any process."""
        if kind == "finish":
            worker, seq = content
            self._finished[worker] = {_OWNER: {worker: seq}}
        else:
            name, facts, event = content
            self._queues.open(name, **facts).replay([event])

    def _open(self, name: str, patterns: FilePatterns) -> FileAssignments:
        queue = self._queues.open(name, **patterns.facts)
        queue.keep = partial(self._tell_event, name, patterns.facts)
        return queue

    def _tell_event(self, name: str, facts: dict[str, Any], event: Event) -> None:
        self._tell("event", [name, facts, event])

    def _adopt(self) -> int | None:
        rest = self._unfinished()
        return rest[0] if rest else None

    def _unfinished(self) -> list[int]:
        applied = self._applied()
        # Of numbers below the number of workers there is a worker.
        begun = self._queues.workers.union(range(self._num_workers, self.num_shares))
        return sorted(worker for worker in begun if not self._is_finished(worker, applied))

    def _saved(self) -> dict[str, Any]:
        finished = {
            str(worker): {owner: {str(origin): seq for origin, seq in seqs.items()} for owner, seqs in had.items()}
            for worker, had in self._finished.items()
        }
        return {
            "num_workers": self._num_workers,
            "num_shares": self.num_shares,
            "finished": finished,
            "queues": self._queues.state_dict(),
        }

    def _is_finished(self, worker: int, applied: Mapping[int, int]) -> bool:
        had = self._finished.get(worker)
        last = applied.get(worker, -1)
        return had is not None and all(seqs.get(worker, -1) <= last for seqs in had.values())


_log = logging.getLogger(__name__)

_MOST_CHARACTERS = 1 << 20
"""Maximum size of one value; a store of torch.distributed accepts eight times as much."""
_numbers = itertools.count()


class _OvertakenError(Exception):
    """Another rank was quicker: decide again, with what it did."""


class RankInputs(LocalJob):
    """The job of one rank; a `Stateful` for ``TrainState(extra={"job": ...})`` of all ranks. Any thread may call it.

    Rank r trains the input of worker r. A rank whose input has ended continues with that of a worker of an earlier
    start that had more ranks (`adopt_worker`).

    Args:
        store: Store shared by all ranks: `monolith.collective.library`.
        rank: Rank of this process.
        num_ranks: Number of ranks of this start.
        applied: Worker -> number of its last batch that is in the rows.
        shares_queue: Whether files come from a queue; otherwise every rank has a fixed share.
        name: Name of the log in the store, the same on all ranks; None: by the order of creation.
    """

    def __init__(
        self,
        store: KeyStore,
        *,
        rank: int,
        num_ranks: int,
        applied: Callable[[], Mapping[int, int]],
        shares_queue: bool,
        name: str | None = None,
    ) -> None:
        super().__init__(num_workers=num_ranks, applied=applied)
        self._store = store
        self._rank = rank
        self._shares_queue = shares_queue
        self._name = f"inputs_{next(_numbers)}" if name is None else name
        self._life = 0
        """Which log it is: each load and reset begins another one."""
        self._num_entries = 0
        """Number of entries of the log that are in the state."""
        self._adopted: set[int] = set()
        self._loaded: Mapping[str, Any] | None = None
        self._restored: Mapping[int, bytes] = {}
        """Worker -> where its input was in the checkpoint."""
        self._merged: bytes | None = None
        """Merged position of all workers, if the input is Kafka."""

    # Resuming

    def reset(self) -> None:
        """Restarts the run from scratch. All ranks call it."""
        super().reset()
        self._begin_log(None)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a checkpoint of any number of ranks or of a job. All ranks call it, and then `begin`."""
        self._load(state)
        self._begin_log(state)

    def begin(self, applied: Mapping[int, BatchStamp]) -> None:
        """Starts after all ranks have restored the same checkpoint: its number of shares stays, except for Kafka."""
        self._restored = {worker: stamp.position for worker, stamp in applied.items()}
        self._merged = _merged(self._restored)
        loaded = OF_ONE_PROCESS if self._loaded is None else self._loaded
        with self._lock:
            is_fixed = bool(applied) and self._merged is None
            self.num_shares = int(loaded.get("num_shares", loaded["num_workers"])) if is_fixed else self._num_workers

    def position(self, worker: int, own: bytes | None) -> bytes | None:
        """Returns where the input of a worker resumes; its Kafka partitions may have been another worker's."""
        if self._merged is None or (own or b"") != self._restored.get(worker, b""):
            return own  # it has trained since
        turn = None if own is None else KafkaPosition.from_bytes(own).turn
        merged = KafkaPosition.from_bytes(self._merged)
        return self._merged if turn is None else dataclasses.replace(merged, turn=turn).to_bytes()

    def _begin_log(self, loaded: Mapping[str, Any] | None) -> None:
        with self._lock:
            self._life += 1
            self._num_entries = 0
            self._adopted.clear()
            self._loaded, self._merged = loaded, None

    # The log

    def _decide(self, action: Callable[[], _T]) -> _T:
        with self._lock:
            while True:
                try:
                    self._catch_up()
                    return action()
                except _OvertakenError:
                    continue

    def _catch_up(self) -> None:
        """Applies what other ranks have appended."""
        while self._ask(self._store.check, [key := self._key(self._num_entries)]):
            entry = json.loads(self._ask(self._store.get, key))
            if "pieces" in entry:
                keys = [f"{entry['pieces']}/{number}" for number in range(entry["count"])]
                entry = json.loads(b"".join(self._ask(self._store.get, piece_key) for piece_key in keys))
            self._apply(entry["kind"], entry["content"])
            self._num_entries += 1

    def _tell(self, kind: str, content: Any) -> None:
        text = json.dumps({"kind": kind, "content": content, "rank": self._rank})
        key = self._key(self._num_entries)
        if len(text) > _MOST_CHARACTERS:
            text = self._put_pieces(f"{key}/{self._rank}", text)
        if self._ask(self._store.compare_set, key, "", text) != text.encode():
            raise _OvertakenError
        self._num_entries += 1

    def _put_pieces(self, prefix: str, text: str) -> str:
        pieces = [text[begin : begin + _MOST_CHARACTERS] for begin in range(0, len(text), _MOST_CHARACTERS)]
        for number, piece in enumerate(pieces):
            self._ask(self._store.set, f"{prefix}/{number}", piece)
        return json.dumps({"pieces": prefix, "count": len(pieces)})

    def _key(self, number: int) -> str:
        return f"{self._name}/{self._life}/{number}"

    def _ask(self, call: Callable[..., _T], *arguments: Any) -> _T:
        try:
            return call(*arguments)
        except (RuntimeError, OSError) as error:
            raise UnavailableError(
                f"inputs of rank {self._rank}: the store that all ranks share does not answer: {error}; the run is"
                " over, and torchrun with --max-restarts begins it again"
            ) from error

    # Workers of an earlier start

    def _adopt(self) -> int | None:
        rest = [worker for worker in self._unfinished() if worker >= self._num_workers and worker not in self._adopted]
        if not self._shares_queue:
            # There is no shared log. All ranks call this together, with the same state.
            taken = rest[: self._num_workers]
            self._adopted.update(taken)
            return taken[self._rank] if self._rank < len(taken) else None
        if not rest:
            return None
        self._happen("adopt", [rest[0], self._rank])
        return rest[0]

    def _apply(self, kind: str, content: Any) -> None:
        if kind == "adopt":
            worker, rank = content
            self._adopted.add(worker)
            if rank == self._rank:
                _log.info("rank %d: continues with the input of worker %d, which is no longer in the job", rank, worker)
        else:
            super()._apply(kind, content)


def _merged(positions: Mapping[int, bytes]) -> bytes | None:
    """Returns the merged position of all workers if all of them read Kafka topics, else None."""
    try:
        return merge_positions(positions.values()) if positions else None
    except InvalidArgumentError:
        return None
