"""Implementation of the control calls of a parameter server; `server.py` connects it to gRPC."""

from __future__ import annotations

import threading
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monolith._version import __version__
from monolith.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnimplementedError,
)
from monolith.observe import resident_bytes
from monolith.ps._wire_values import (
    blocks_in,
    buckets_in,
    file_message,
    mark_in,
    mark_message,
    messages_of,
    rules_in,
    stamp_in,
    stamp_message,
    stats_message,
)
from monolith.ps.agreement import WIRE_VERSION, configs_of
from monolith.ps.places import measure_throughput
from monolith.ps.server.client_sessions import ClientSessions, OpenCut, PreparedLoad, PreparedRows
from monolith.ps.server.hosted_publisher import PublishingRequest
from monolith.ps.server.hosted_rows import HostedStores
from monolith.ps.server.push_gates import PushGates, rows_owner
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables import NUM_BUCKETS, new_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monolith.ps.server.hosted_rows import HostedRows
    from monolith.ps.server.server import FrameServer
    from monolith.tables.formats import RowBlock
    from monolith.tables.local import LocalChangeReader


_MOST_NOTES = 1 << 16
_LONGEST_NOTE = 1 << 16
_LONGEST_HOLD_SECONDS = 60.0


class ControlService:
    """The methods of the service by their names on the wire. Called by server threads.

    `place` is the index of this server and the number of servers.
    """

    def __init__(
        self,
        *,
        place: tuple[int, int],
        life: int,
        frames: FrameServer,
        on_stop: Callable[[float], None],
        memory_limit_bytes: int | None = None,
    ) -> None:
        self._place = place
        self.life = life
        self._frames = frames
        self._on_stop = on_stop
        self._memory_limit_bytes = memory_limit_bytes
        self._benchmarks_end = threading.Event()
        self._notes: dict[str, str] = {}
        self._notes_lock = threading.Lock()  # guards the notes
        self.was_recovered = False
        """Whether this process recovered the state of a previous one."""
        self.frames_inside = False
        self.frames_tls = False
        """Whether frames travel through a stream of the control port."""
        self.on_assign: Callable[[int, int], None] | None = None
        """Called with the index and number of servers assigned to a standby server; None: not a standby server."""
        self.gates = PushGates()
        self.visitors = ClientSessions()
        self.stores = HostedStores(place, frames, self.gates)

    def close(self) -> None:
        """Releases the resources of clients, and closes the stores."""
        self.visitors.close()
        self.stores.close()

    def steps(self) -> int | None:
        """Returns the applied batches of all workers in the first store by name; None: there is no store."""
        first = min(self.stores.names(), default=None)
        return None if first is None else self.stores.find(first).steps

    def leave(self, client: int) -> None:
        """Removes a stream of a client; the last one releases the client's resources and its hold."""
        if self.visitors.leave(client):
            self.gates.release(client)

    # The server

    def Describe(self, request: messages.DescribeRequest) -> Any:  # noqa: ARG002, N802 - as on the wire
        """Returns the index, version and frame port of this server."""
        return messages.DescribeResponse(
            index=self._place[0],
            num_ps=self._place[1],
            version=__version__,
            wire_version=WIRE_VERSION,
            life=self.life,
            frame_port=self._frames.port,
            frames_inside=self.frames_inside,
            frames_tls=self.frames_tls,
            stores=self.stores.names(),
            stands_by=self.on_assign is not None,
            was_recovered=self.was_recovered,
        )

    def TakePlace(self, request: messages.TakePlaceRequest) -> Any:  # noqa: N802 - as on the wire
        """Assigns an index to a standby server."""
        place = request.index, request.num_ps
        if self.on_assign is not None:
            self.on_assign(*place)
        elif place != self._place:
            raise FailedPreconditionError(
                f"parameter server: it is index {self._place[0]} of {self._place[1]}, and cannot become index"
                f" {place[0]} of {place[1]}; give that place to one that stands by"
            )
        return messages.Done()

    def Stop(self, request: messages.StopRequest) -> Any:  # noqa: N802 - as on the wire
        """Requests the end of the process."""
        self._on_stop(request.drain_seconds)
        return messages.Done()

    def end_benchmarks(self) -> None:
        """Aborts running benchmarks and rejects new ones, because the process ends."""
        self._benchmarks_end.set()

    def Health(self, request: messages.HealthRequest) -> Any:  # noqa: ARG002, N802 - as on the wire
        """Returns resident memory and its limit; 0 on a system that does not report it, which cannot have a limit."""
        try:
            resident = resident_bytes()
        except UnimplementedError:
            resident = 0
        return messages.HealthResponse(resident_bytes=resident, limit_bytes=self._memory_limit_bytes or 0)

    def Benchmark(self, request: messages.BenchmarkRequest) -> Any:  # noqa: N802 - as on the wire
        """Runs a benchmark for some seconds."""
        return messages.BenchmarkResponse(throughput=measure_throughput(request.seconds, self._benchmarks_end.is_set))

    # Texts that clients store for each other on a standby server

    def Note(self, request: messages.NoteRequest) -> Any:  # noqa: N802 - as on the wire
        """Stores a text for other clients, replacing one of the same name."""
        self._require_standing_by()
        with self._notes_lock:
            is_full = request.name not in self._notes and len(self._notes) >= _MOST_NOTES
            if is_full or len(request.name) + len(request.value) > _LONGEST_NOTE:
                raise ResourceExhaustedError(
                    f"note: at most {_MOST_NOTES} of {_LONGEST_NOTE} characters each are kept, got one more or longer"
                )
            self._notes[request.name] = request.value
        return messages.Done()

    def Notes(self, request: messages.NotesRequest) -> Any:  # noqa: ARG002, N802 - as on the wire
        """Returns the stored texts."""
        self._require_standing_by()
        with self._notes_lock:
            return messages.NotesResponse(notes=self._notes)

    # Stores

    def Configure(self, request: messages.ConfigureRequest) -> Any:  # noqa: N802 - as on the wire
        """Creates a store, or checks that an existing one has the same tables."""
        if self.on_assign is not None:
            raise FailedPreconditionError("parameter server: it stands by and keeps nothing; assign it a place first")
        if not request.store or "\n" in request.store:
            raise InvalidArgumentError(f"store: a name without line breaks expected, got {request.store!r}")
        configs_of(request.agreement)
        life = request.life.generation, request.life.life
        rows, is_new = self.stores.open(request.store, request.agreement, life, adopt=request.adopt)
        return messages.ConfigureResponse(is_new=is_new, life=_life_message(rows))

    def DropStore(self, request: messages.StoreRequest) -> Any:  # noqa: N802 - as on the wire
        """Drops a store."""
        self.stores.drop(request.store)
        return messages.Done()

    def Situation(self, request: messages.StoreRequest) -> Any:  # noqa: N802 - as on the wire
        """Returns the statistics of a store."""
        rows = self.stores.find(request.store)
        return stats_message(
            rows.store.stats(), epoch=rows.last_epoch, life=_life_message(rows), newest_times=rows.newest_times()
        )

    def Moment(self, request: messages.StoreRequest) -> Any:  # noqa: N802 - as on the wire
        """Returns epoch, newest times and `life`, for cuts and marks."""
        rows = self.stores.find(request.store)
        return messages.MomentResponse(
            epoch=rows.last_epoch, newest_times=rows.newest_times(), life=_life_message(rows)
        )

    def Initialized(self, request: messages.OwnersRequest) -> Any:  # noqa: N802 - as on the wire
        """Returns which owners are initialized or resumed."""
        initialized, resumed = self.stores.initialized(), self.stores.resumed()
        return messages.OwnersResponse(
            owners=[name for name in request.owners if name in initialized],
            resumed=[name for name in request.owners if name in resumed],
        )

    def SetInitialized(self, request: messages.OwnersRequest) -> Any:  # noqa: N802 - as on the wire
        """Marks owners as initialized, until this process ends."""
        self.stores.set_initialized(request.owners)
        return messages.Done()

    # Push barrier

    def Hold(self, request: messages.HoldRequest) -> Any:  # noqa: N802 - as on the wire
        """Holds pushes."""
        if not 0 < request.seconds <= _LONGEST_HOLD_SECONDS:
            raise InvalidArgumentError(
                f"hold: seconds above 0, and at most {_LONGEST_HOLD_SECONDS}, expected, got {request.seconds}"
            )
        return _clocks_message(self.gates.hold(request.client, request.seconds))

    def Level(self, request: messages.LevelRequest) -> Any:  # noqa: N802 - as on the wire
        """Lets pushes up to the given batches pass during a hold."""
        limits = {name: dict(clock.seqs) for name, clock in request.clocks.items()}
        wait_seconds = min(max(request.wait_seconds, 0.0), _LONGEST_HOLD_SECONDS)
        return _clocks_message(self.gates.catch_up(request.client, limits, wait_seconds))

    def Release(self, request: messages.ReleaseRequest) -> Any:  # noqa: N802 - as on the wire
        """Releases a hold."""
        return messages.ReleaseResponse(was_held=self.gates.release(request.client))

    # Cuts

    def CutAt(self, request: messages.CutAtRequest) -> Any:  # noqa: N802 - as on the wire
        """Freezes the rows."""
        rows = self.stores.find(request.store)
        opened = rows.cut_at(request.epoch, request.newest_times)
        number = self.visitors.keep(request.client, opened)
        cut = opened.cut
        return messages.CutAtResponse(
            number=number,
            epoch=cut.mark.epoch,
            stamps=[stamp_message(stamp) for clock in cut.applied for stamp in clock.stamps.values()],
            rows=list(cut.rows.values()),
        )

    def CutBlocks(self, request: messages.CutBlocksRequest) -> Iterator[Any]:  # noqa: N802 - as on the wire
        """Returns the rows of a cut."""
        opened = self.visitors.find(request.number, OpenCut)
        since = mark_in(request.since) if request.HasField("since") else None
        return messages_of(opened.cut.blocks(buckets_in(request.buckets), state=request.state, since=since))

    def WriteCut(self, request: messages.WriteCutRequest) -> Any:  # noqa: N802 - as on the wire
        """Writes this server's files of a cut."""
        written = self.visitors.find(request.number, OpenCut).write(request.folder, rules_in(request))
        return messages.WriteCutResponse(
            files=[file_message(file) for file in written.files],
            rows=list(written.rows.values()),
            newest_times=list(written.newest_times.values()),
        )

    def GiveUpWrite(self, request: messages.CutRequest) -> Any:  # noqa: N802 - as on the wire
        """Cancels a write, and removes its files."""
        self.visitors.find(request.number, OpenCut).give_up_write()
        return messages.Done()

    def ReleaseCut(self, request: messages.CutRequest | messages.TicketRequest) -> Any:  # noqa: N802 - as on the wire
        """Releases a cut and its old row images; checked blocks; a restore, which is cancelled or ends."""
        self.visitors.drop(request.number)
        return messages.Done()

    DropLoad = DropRestore = ReleaseCut

    # Readers

    def OpenReader(self, request: messages.OpenReaderRequest) -> Any:  # noqa: N802 - as on the wire
        """Opens a reader of changes, or reports that there is none."""
        at = mark_in(request.at) if request.HasField("at") else None
        epoch = request.epoch if request.HasField("epoch") else None
        reached, was_known = self.stores.find(request.store).open_reader(request.name, at, epoch)
        return messages.ReaderResponse(is_known=reached is not None, was_known=was_known, epoch=reached or 0)

    def ReaderPosition(self, request: messages.ReaderRequest) -> Any:  # noqa: N802 - as on the wire
        """Returns how far a reader has read."""
        rows, reader = self._reader(request)
        return messages.ReaderResponse(is_known=True, was_known=True, epoch=rows.history.position_of(reader))

    def MarkAt(self, request: messages.MarkAtRequest) -> Any:  # noqa: N802 - as on the wire
        """Ends epochs up to the given one, for a reader."""
        rows, reader = self._reader(request.reader)
        rows.history.position_of(reader)
        rows.history.mark_at(request.epoch)
        return messages.Done()

    def Changes(self, request: messages.ChangesRequest) -> Iterator[Any]:  # noqa: N802 - as on the wire
        """Returns unread changes of a reader."""
        rows, reader = self._reader(request.reader)
        return messages_of(rows.changes(reader, buckets_in(request.buckets), state=request.state))

    def Advance(self, request: messages.AdvanceRequest) -> Any:  # noqa: N802 - as on the wire
        """Advances a reader."""
        rows, reader = self._reader(request.reader)
        rows.advance(reader, mark_in(request.to))
        return messages.Done()

    def CloseReader(self, request: messages.ReaderRequest) -> Any:  # noqa: N802 - as on the wire
        """Removes a reader."""
        self._reader(request)[1].close()
        return messages.Done()

    # Rows

    def Touch(self, request: messages.TouchRequest) -> Any:  # noqa: N802 - as on the wire
        """Marks rows as changed."""
        ids, buckets = _ids_in(request)
        self.stores.find(request.store).store.touch(request.table, ids, buckets=buckets)
        return messages.Done()

    def Erase(self, request: messages.EraseRequest) -> Any:  # noqa: N802 - as on the wire
        """Removes rows and admission counts."""
        ids, buckets = _ids_in(request)
        return messages.EraseResponse(rows=self.stores.find(request.store).erase(request.table, ids, buckets))

    def RowsBySlot(self, request: messages.RowsBySlotRequest) -> Any:  # noqa: N802 - as on the wire
        """Counts rows by slot."""
        return messages.RowsBySlotResponse(rows=self.stores.find(request.store).store.rows_by_slot(request.table))

    def CheckBlocks(self, requests: Iterator[messages.CheckBlocksRequest]) -> Any:  # noqa: N802 - as on the wire
        """Receives and checks blocks to load."""
        order, blocks = _ordered(requests)
        prepared = self.stores.find(order.store).prepare_load(
            blocks,
            buckets=buckets_in(order.buckets),
            emptied=buckets_in(order.emptied) if order.HasField("emptied") else None,
        )
        return messages.Ticket(number=self.visitors.keep(order.client, prepared))

    def Load(self, request: messages.TicketRequest) -> Any:  # noqa: N802 - as on the wire
        """Loads the checked blocks."""
        report = self.visitors.find(request.number, PreparedLoad).load()
        self.visitors.drop(request.number)
        return messages.LoadResponse(**asdict(report))

    def PrepareRestore(self, request: messages.PrepareRestoreRequest) -> Any:  # noqa: N802 - as on the wire
        """Reads and checks files to restore."""
        prepared = self.stores.find(request.store).prepare_restore(
            request.folder,
            request.manifest,
            buckets=buckets_in(request.buckets),
            emptied=buckets_in(request.emptied),
            ignore_unknown_tables=request.ignore_unknown_tables,
        )
        return messages.Ticket(number=self.visitors.keep(request.client, prepared))

    def LoadRestore(self, request: messages.TicketRequest) -> Any:  # noqa: N802 - as on the wire
        """Replaces the rows by those of the files."""
        report = self.visitors.find(request.number, PreparedRows).load()
        return messages.LoadRestoreResponse(rows=report.rows)

    def Resume(self, request: messages.ResumeRequest) -> Any:  # noqa: N802 - as on the wire
        """Resumes from a saved state."""
        stamps = [stamp_in(stamp) for stamp in request.stamps]
        self.stores.find(request.store).resume(stamps, (request.life.generation, request.life.life))
        self.stores.mark_resumed(rows_owner(request.store))
        return messages.Done()

    def Assign(self, requests: Iterator[messages.AssignRequest]) -> Any:  # noqa: N802 - as on the wire
        """Overwrites weights, or adds to them."""
        order, blocks = _ordered(requests)
        if len(blocks) != 1:
            raise InvalidArgumentError(f"assign: one block expected, got {len(blocks)}")
        self.stores.find(order.store).store.assign_at(blocks[0], _array(order.times, "<i8"), add=order.add)
        return messages.Done()

    def Evict(self, request: messages.EvictRequest) -> Any:  # noqa: N802 - as on the wire
        """Removes expired rows."""
        rows = self.stores.find(request.store)
        rows.raise_newest_times(request.newest_times)
        return messages.EvictResponse(rows=rows.store.evict(now=request.now))

    def LookRow(self, request: messages.LookRowRequest) -> Any:  # noqa: N802 - as on the wire
        """Returns the row of a key, if this server has it; for debugging. Inserts nothing, and blocks no other call."""
        native = self.stores.find(request.store).store.native
        names = list(native.schema.names)
        if request.table not in names:
            raise NotFoundError(f"store {request.store!r} has no table {request.table!r}; it has {', '.join(names)}")
        if request.bucket >= NUM_BUCKETS:
            raise InvalidArgumentError(f"bucket: one below {NUM_BUCKETS} expected, got {request.bucket}")
        number = names.index(request.table)
        key, bucket = np.array([request.key], np.int64), np.array([request.bucket], np.uint16)
        plan = native.core.plan(key, native.splits_for(number, 1), True, bucket)
        values = new_rows((native.dims[number],))
        found = native.core.read(plan, values, 0) == 1
        return messages.LookRowResponse(found=found, weights=values if found else [])

    # Publishing

    def Publish(self, request: messages.PublishRequest) -> Any:  # noqa: N802 - as on the wire
        """Starts or continues publication."""
        wish = PublishingRequest(
            request.name, request.log, request.base_folder or None, request.interval_seconds, request.record_bytes
        )
        self.stores.find(request.store).publishing.begin(wish, request.position)
        return self._published(request.store, now=False, saved=False)

    def Published(self, request: messages.PublishedRequest) -> Any:  # noqa: N802 - as on the wire
        """Returns the position of the log."""
        return self._published(request.store, now=request.now, saved=request.saved)

    # Implementation

    def _published(self, store: str, *, now: bool, saved: bool) -> messages.PublishedResponse:
        position = self.stores.find(store).publishing.published(now=now, saved=saved)
        return messages.PublishedResponse(
            numbers=position.numbers, ended=position.ended, mark=mark_message(position.mark), written=position.written
        )

    def _require_standing_by(self) -> None:
        if self.on_assign is None:
            raise FailedPreconditionError("notes: this server has its place among the servers of a job, and keeps none")

    def _reader(self, request: messages.ReaderRequest) -> tuple[HostedRows, LocalChangeReader]:
        rows = self.stores.find(request.store)
        return rows, rows.reader(request.name, mark_in(request.opened_at))


def _life_message(rows: HostedRows) -> messages.Life:
    generation, life = rows.life
    return messages.Life(generation=generation, life=life)


def _clocks_message(clocks: dict[str, dict[int, int]]) -> messages.HoldResponse:
    return messages.HoldResponse(clocks={name: messages.Clock(seqs=clock) for name, clock in clocks.items()})


def _ordered(requests: Iterator[Any]) -> tuple[Any, list[RowBlock]]:
    """Returns the order in the first message of a stream, and the blocks of all messages."""
    first = next(requests, None)
    if first is None or not first.HasField("order"):
        raise InvalidArgumentError("blocks: what to do with them is expected in the first message")
    return first.order, list(blocks_in(message.blocks for message in chain([first], requests)))


def _ids_in(request: messages.TouchRequest | messages.EraseRequest) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns the ids of a request, and their buckets if given."""
    buckets = torch.from_numpy(_array(request.buckets, "<i2")) if request.buckets else None
    return torch.from_numpy(_array(request.ids, "<i8")), buckets


def _array(data: bytes, kind: str) -> Any:
    """Returns a writable array of the bytes, as required for tensors.

    Raises:
        InvalidArgumentError: the size is not a multiple of the item size.
    """
    size = np.dtype(kind).itemsize
    if len(data) % size:
        raise InvalidArgumentError(f"numbers of {size} bytes expected, got {len(data)} bytes")
    return np.frombuffer(bytearray(data), kind)
