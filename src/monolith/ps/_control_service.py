"""What a parameter server does for each call of its control; `_control_handler` connects it to gRPC."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monolith._version import __version__
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.ps._block_stream import blocks_in, messages_of
from monolith.ps._machine_calls import MachineCalls
from monolith.ps._note_calls import NoteCalls
from monolith.ps._publish_calls import PublishCalls
from monolith.ps._row_looks import RowLookCalls
from monolith.ps._wire_values import (
    buckets_in,
    file_message,
    mark_in,
    rules_in,
    stamp_in,
    stamp_message,
    stats_message,
)
from monolith.ps.agreement import WIRE_VERSION, configs_of
from monolith.ps.held_gates import HeldGates, rows_owner
from monolith.ps.hosted_stores import HostedStores
from monolith.ps.open_things import OpenCut, PreparedLoad, PreparedRows
from monolith.ps.protos import parameter_server_pb2 as messages
from monolith.ps.visitors import Visitors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monolith.ps.hosted_rows import HostedRows
    from monolith.ps.server import FrameServer
    from monolith.tables.local_history import LocalChangeReader
    from monolith.tables.row_block import RowBlock

__all__ = ["ControlService"]

_LONGEST_HOLD_SECONDS = 60.0


class ControlService(MachineCalls, NoteCalls, PublishCalls, RowLookCalls):
    """The methods of the service by their names on the wire. Called by the threads of the server.

    Args:
        place: Number of this server, and of all servers.
        life: Of this process.
        frames: What answers the batches of workers.
        on_stop: Called when the process is asked to end, with the seconds that calls under way are given.
        memory_limit_bytes: What the process may have in RAM; None: nobody has said.
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
        MachineCalls.__init__(self, memory_limit_bytes)
        NoteCalls.__init__(self, lambda: self.on_assign is not None)
        PublishCalls.__init__(self, self._rows)
        RowLookCalls.__init__(self, self._rows)
        self._place = place
        self.life = life
        self._frames = frames
        self._on_stop = on_stop
        self.was_recovered = False
        """Whether this process came back with what another one had."""
        self.frames_inside = False
        """Whether frames go through the stream of the control port."""
        self.on_assign: Callable[[int, int], None] | None = None
        """Called with the place that this server is given; None: it has one."""
        self.gates = HeldGates()
        self.visitors = Visitors()
        self.stores = HostedStores(place, frames, self.gates)

    def close(self) -> None:
        """Gives up what clients have open, and ends the stores."""
        self.visitors.close()
        self.stores.close()

    def steps(self) -> int | None:
        """Batches of all workers in the rows of the first store by name; None: there is no store."""
        first = min(self.stores.names(), default=None)
        return None if first is None else self.stores.find(first).steps

    def leave(self, client: int) -> None:
        """A stream of a client has ended; with the last one, what it has open here and what it holds."""
        if self.visitors.leave(client):
            self.gates.release(client)

    # Who is there

    def Describe(self, request: messages.DescribeRequest) -> Any:  # noqa: ARG002, N802 - as on the wire
        """Who this is, and where its frames go."""
        return messages.DescribeResponse(
            index=self._place[0],
            num_ps=self._place[1],
            version=__version__,
            wire_version=WIRE_VERSION,
            life=self.life,
            frame_port=self._frames.port,
            frames_inside=self.frames_inside,
            stores=self.stores.names(),
            stands_by=self.on_assign is not None,
            was_recovered=self.was_recovered,
        )

    def TakePlace(self, request: messages.TakePlaceRequest) -> Any:  # noqa: N802 - as on the wire
        """Takes a place."""
        wanted = request.index, request.num_ps
        if self.on_assign is not None:
            self.on_assign(*wanted)
        elif wanted != self._place:
            raise FailedPreconditionError(
                f"parameter server: it is index {self._place[0]} of {self._place[1]}, and cannot become index"
                f" {wanted[0]} of {wanted[1]}; give that place to one that stands by"
            )
        return messages.Done()

    def Stop(self, request: messages.StopRequest) -> Any:  # noqa: N802 - as on the wire
        """Ends the process."""
        self._on_stop(request.drain_seconds)
        return messages.Done()

    # Stores

    def Configure(self, request: messages.ConfigureRequest) -> Any:  # noqa: N802 - as on the wire
        """Makes a store, or compares."""
        if self.on_assign is not None:
            raise FailedPreconditionError("parameter server: it stands by and keeps nothing; assign it a place first")
        if not request.store or "\n" in request.store:
            raise InvalidArgumentError(f"store: a name without line breaks expected, got {request.store!r}")
        configs_of(request.agreement)
        life = request.life.generation, request.life.life
        rows, is_new = self.stores.open(request.store, request.agreement, life, adopt=request.adopt)
        return messages.ConfigureResponse(is_new=is_new, life=_life_message(rows))

    def DropStore(self, request: messages.StoreRequest) -> Any:  # noqa: N802 - as on the wire
        """Forgets a store."""
        self.stores.drop(request.store)
        return messages.Done()

    def Situation(self, request: messages.StoreRequest) -> Any:  # noqa: N802 - as on the wire
        """All numbers of a store."""
        rows = self._rows(request.store)
        return stats_message(
            rows.store.stats(), epoch=rows.last_epoch, life=_life_message(rows), newest_times=rows.newest_times()
        )

    def Moment(self, request: messages.StoreRequest) -> Any:  # noqa: N802 - as on the wire
        """What cuts and marks need."""
        rows = self._rows(request.store)
        return messages.MomentResponse(
            epoch=rows.last_epoch, newest_times=rows.newest_times(), life=_life_message(rows)
        )

    def Initialized(self, request: messages.OwnersRequest) -> Any:  # noqa: N802 - as on the wire
        """Which owners have state."""
        initialized, resumed = self.stores.initialized(), self.stores.resumed()
        return messages.OwnersResponse(
            owners=[name for name in request.owners if name in initialized],
            resumed=[name for name in request.owners if name in resumed],
        )

    def SetInitialized(self, request: messages.OwnersRequest) -> Any:  # noqa: N802 - as on the wire
        """Owners have state from now on, as long as this process lives."""
        self.stores.set_initialized(request.owners)
        return messages.Done()

    # Holding

    def Hold(self, request: messages.HoldRequest) -> Any:  # noqa: N802 - as on the wire
        """Keeps pushes back."""
        if not 0 < request.seconds <= _LONGEST_HOLD_SECONDS:
            raise InvalidArgumentError(
                f"hold: seconds above 0, and at most {_LONGEST_HOLD_SECONDS}, expected, got {request.seconds}"
            )
        return _clocks_message(self.gates.hold(request.client, request.seconds))

    def Level(self, request: messages.LevelRequest) -> Any:  # noqa: N802 - as on the wire
        """Lets some pass."""
        limits = {name: dict(clock.seqs) for name, clock in request.clocks.items()}
        wait_seconds = min(max(request.wait_seconds, 0.0), _LONGEST_HOLD_SECONDS)
        return _clocks_message(self.gates.level(request.client, limits, wait_seconds))

    def Release(self, request: messages.ReleaseRequest) -> Any:  # noqa: N802 - as on the wire
        """Lets all pass."""
        return messages.ReleaseResponse(was_held=self.gates.release(request.client))

    # Cuts

    def CutAt(self, request: messages.CutAtRequest) -> Any:  # noqa: N802 - as on the wire
        """Freezes the rows."""
        rows = self._rows(request.store)
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
        """The rows of a cut."""
        opened = self.visitors.find(request.number, OpenCut)
        since = mark_in(request.since) if request.HasField("since") else None
        return messages_of(opened.cut.blocks(buckets_in(request.buckets), state=request.state, since=since))

    def WriteCut(self, request: messages.WriteCutRequest) -> Any:  # noqa: N802 - as on the wire
        """Writes the files of this server."""
        written = self.visitors.find(request.number, OpenCut).write(request.folder, rules_in(request))
        return messages.WriteCutResponse(
            files=[file_message(file) for file in written.files],
            rows=list(written.rows.values()),
            newest_times=list(written.newest_times.values()),
        )

    def GiveUpWrite(self, request: messages.CutRequest) -> Any:  # noqa: N802 - as on the wire
        """No files of a cut are left."""
        self.visitors.find(request.number, OpenCut).give_up_write()
        return messages.Done()

    def ReleaseCut(self, request: messages.CutRequest) -> Any:  # noqa: N802 - as on the wire
        """Forgets old images."""
        self.visitors.drop(request.number)
        return messages.Done()

    # Readers

    def OpenReader(self, request: messages.OpenReaderRequest) -> Any:  # noqa: N802 - as on the wire
        """Opens a reader of changes, or tells that there is none."""
        at = mark_in(request.at) if request.HasField("at") else None
        epoch = request.epoch if request.HasField("epoch") else None
        reached, was_known = self._rows(request.store).open_reader(request.name, at, epoch)
        return messages.ReaderResponse(is_known=reached is not None, was_known=was_known, epoch=reached or 0)

    def ReaderPosition(self, request: messages.ReaderRequest) -> Any:  # noqa: N802 - as on the wire
        """How far a reader has read."""
        rows, reader = self._reader(request)
        return messages.ReaderResponse(is_known=True, was_known=True, epoch=rows.history.position_of(reader))

    def MarkAt(self, request: messages.MarkAtRequest) -> Any:  # noqa: N802 - as on the wire
        """Ends epochs, for a reader."""
        rows, reader = self._reader(request.reader)
        rows.history.position_of(reader)
        rows.history.mark_at(request.epoch)
        return messages.Done()

    def Changes(self, request: messages.ChangesRequest) -> Iterator[Any]:  # noqa: N802 - as on the wire
        """What a reader has not read."""
        rows, reader = self._reader(request.reader)
        return messages_of(rows.changes(reader, buckets_in(request.buckets), state=request.state))

    def Advance(self, request: messages.AdvanceRequest) -> Any:  # noqa: N802 - as on the wire
        """A reader has read."""
        rows, reader = self._reader(request.reader)
        rows.advance(reader, mark_in(request.to))
        return messages.Done()

    def CloseReader(self, request: messages.ReaderRequest) -> Any:  # noqa: N802 - as on the wire
        """Forgets a reader."""
        self._reader(request)[1].close()
        return messages.Done()

    # Rows

    def Touch(self, request: messages.TouchRequest) -> Any:  # noqa: N802 - as on the wire
        """Rows count as changed."""
        ids, buckets = _ids_in(request)
        self._rows(request.store).store.touch(request.table, ids, buckets=buckets)
        return messages.Done()

    def Erase(self, request: messages.EraseRequest) -> Any:  # noqa: N802 - as on the wire
        """Removes rows and admission counts."""
        ids, buckets = _ids_in(request)
        return messages.EraseResponse(rows=self._rows(request.store).erase(request.table, ids, buckets))

    def RowsBySlot(self, request: messages.RowsBySlotRequest) -> Any:  # noqa: N802 - as on the wire
        """Counts rows."""
        return messages.RowsBySlotResponse(rows=self._rows(request.store).store.rows_by_slot(request.table))

    def CheckBlocks(self, requests: Iterator[messages.CheckBlocksRequest]) -> Any:  # noqa: N802 - as on the wire
        """Takes blocks over, to be loaded."""
        order, blocks = _ordered(requests)
        prepared = self._rows(order.store).prepare_load(
            blocks,
            buckets=buckets_in(order.buckets),
            emptied=buckets_in(order.emptied) if order.HasField("emptied") else None,
        )
        return messages.Ticket(number=self.visitors.keep(order.client, prepared))

    def Load(self, request: messages.TicketRequest) -> Any:  # noqa: N802 - as on the wire
        """Writes the blocks that were taken over."""
        report = self.visitors.find(request.number, PreparedLoad).load()
        self.visitors.drop(request.number)
        return messages.LoadResponse(
            rows=report.rows, tombstones=report.tombstones, filters=report.filters, ignored=report.ignored
        )

    def DropLoad(self, request: messages.TicketRequest) -> Any:  # noqa: N802 - as on the wire
        """Forgets them."""
        self.visitors.drop(request.number)
        return messages.Done()

    def PrepareRestore(self, request: messages.PrepareRestoreRequest) -> Any:  # noqa: N802 - as on the wire
        """Reads and checks files."""
        prepared = self._rows(request.store).prepare_restore(
            request.folder,
            request.manifest,
            buckets=buckets_in(request.buckets),
            emptied=buckets_in(request.emptied),
            ignore_unknown_tables=request.ignore_unknown_tables,
        )
        return messages.Ticket(number=self.visitors.keep(request.client, prepared))

    def LoadRestore(self, request: messages.TicketRequest) -> Any:  # noqa: N802 - as on the wire
        """Replaces the rows by what the files hold."""
        report = self.visitors.find(request.number, PreparedRows).load()
        return messages.LoadRestoreResponse(rows=report.rows)

    def DropRestore(self, request: messages.TicketRequest) -> Any:  # noqa: N802 - as on the wire
        """Gives a restore up, or ends it."""
        self.visitors.drop(request.number)
        return messages.Done()

    def Resume(self, request: messages.ResumeRequest) -> Any:  # noqa: N802 - as on the wire
        """Goes on from a saved state."""
        stamps = [stamp_in(stamp) for stamp in request.stamps]
        self._rows(request.store).resume(stamps, (request.life.generation, request.life.life))
        self.stores.mark_resumed(rows_owner(request.store))
        return messages.Done()

    def Assign(self, requests: Iterator[messages.AssignRequest]) -> Any:  # noqa: N802 - as on the wire
        """Overwrites weights."""
        order, blocks = _ordered(requests)
        if len(blocks) != 1:
            raise InvalidArgumentError(f"assign: one block expected, got {len(blocks)}")
        self._rows(order.store).store.assign_at(blocks[0], _array(order.times, "<i8"), add=order.add)
        return messages.Done()

    def Evict(self, request: messages.EvictRequest) -> Any:  # noqa: N802 - as on the wire
        """Removes expired rows."""
        rows = self._rows(request.store)
        rows.raise_newest_times(request.newest_times)
        return messages.EvictResponse(rows=rows.store.evict(now=request.now))

    # Inside

    def _rows(self, name: str) -> HostedRows:
        return self.stores.find(name)

    def _reader(self, request: messages.ReaderRequest) -> tuple[HostedRows, LocalChangeReader]:
        rows = self._rows(request.store)
        return rows, rows.reader(request.name, mark_in(request.opened_at))


def _life_message(rows: HostedRows) -> messages.Life:
    generation, life = rows.life
    return messages.Life(generation=generation, life=life)


def _clocks_message(clocks: dict[str, dict[int, int]]) -> messages.HoldResponse:
    return messages.HoldResponse(clocks={name: messages.Clock(seqs=clock) for name, clock in clocks.items()})


def _ordered(requests: Iterator[Any]) -> tuple[Any, list[RowBlock]]:
    """What the first message of a stream says, and the blocks of all."""
    first = next(requests, None)
    if first is None or not first.HasField("order"):
        raise InvalidArgumentError("blocks: what to do with them is expected in the first message")
    return first.order, list(blocks_in(each.blocks for each in chain([first], requests)))


def _ids_in(request: messages.TouchRequest | messages.EraseRequest) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The ids of a request, and their buckets where it has them."""
    buckets = torch.from_numpy(_array(request.buckets, "<i2")) if request.buckets else None
    return torch.from_numpy(_array(request.ids, "<i8")), buckets


def _array(data: bytes, kind: str) -> Any:
    """A writable array of the bytes, as tensors want them.

    Raises:
        InvalidArgumentError: they are not whole numbers of this kind.
    """
    size = np.dtype(kind).itemsize
    if len(data) % size:
        raise InvalidArgumentError(f"numbers of {size} bytes expected, got {len(data)} bytes")
    return np.frombuffer(bytearray(data), kind)
