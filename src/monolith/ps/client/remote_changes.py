"""Named readers of the changes of all servers, and the publication of these changes by the servers themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.ps._wire_values import buckets_message, mark_in, mark_message
from monolith.ps.client.remote_cut import open_blocks
from monolith.rpc import outcomes_of
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables import ALL_BUCKETS, ChangePosition, bucket_bounds, shared_buckets
from monolith.tables.formats import PackedBlocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.deltalog import DeltaLog
    from monolith.deltalog.publish import StorePublishingConfig, Trained
    from monolith.ps.client.cluster import PsCluster
    from monolith.ps.client.store import PsStore
    from monolith.tables.formats import RowBlock

_SUBJECT = "parameter servers"


class RemoteReader:
    """`monolith.tables.ChangeReader` of all servers. Thread-safe.

    Each server stores its own read position; the mark of the reader is that of the least advanced server.
    """

    def __init__(self, store: PsStore, name: str, opened_at: ChangePosition) -> None:
        self._store = store
        self._cluster = store.cluster
        self.name = name
        self._opened_at = opened_at

    @property
    def mark(self) -> ChangePosition:
        """Everything up to this mark was read."""
        answers = self._cluster.ask("ReaderPosition", self._message())
        return self._opened_at._replace(epoch=min(answer.epoch for answer in answers))

    def next_mark(self) -> ChangePosition:
        """Ends the current epoch of all servers."""
        epoch = max(moment.epoch for moment in self._store.moments()) + 1
        self._cluster.ask("MarkAt", messages.MarkAtRequest(reader=self._message(), epoch=epoch))
        return self._opened_at._replace(epoch=epoch)

    def changes(self, *, state: bool, buckets: range = ALL_BUCKETS) -> Iterator[RowBlock]:
        """Returns tombstones and rows of everything touched after `mark`."""
        bucket_bounds(buckets)
        requests = [
            messages.ChangesRequest(
                reader=self._message(), buckets=buckets_message(shared_buckets(owned, buckets)), state=state
            )
            for owned in self._cluster.owned
        ]
        return open_blocks(self._cluster, "Changes", requests, keeps=self)

    def packed_changes(self, *, state: bool, buckets: range = ALL_BUCKETS) -> PackedBlocks:
        """Returns the blocks of `changes`, packed into one object."""
        return PackedBlocks.of(self.changes(state=state, buckets=buckets))

    def advance(self, to: ChangePosition) -> None:
        """Marks everything up to `to` as read."""
        present = self.mark
        if to[:2] == present[:2] and to.epoch < present.epoch:
            raise FailedPreconditionError(
                f"reader {self.name!r}: it has read up to mark {present.epoch} and cannot go back to {to.epoch}"
            )
        self._cluster.ask("Advance", messages.AdvanceRequest(reader=self._message(), to=mark_message(to)))

    def close(self) -> None:
        """Removes the reader on the servers; after a close of the store, only this client of the reader is closed."""
        if self._store.is_closed:
            return
        self._cluster.ask("CloseReader", self._message())

    def _message(self) -> messages.ReaderRequest:
        if self._store.is_closed:
            raise FailedPreconditionError(f"reader {self.name!r}: its store was closed; open both again")
        return messages.ReaderRequest(store=self._store.name, name=self.name, opened_at=mark_message(self._opened_at))


def open_reader(store: PsStore, name: str, at: ChangePosition | None) -> RemoteReader:
    """Opens a reader; see `Store.open_reader`."""
    if not name:
        raise InvalidArgumentError(f"{_SUBJECT}: a reader of changes needs a name, got {name!r}")
    if at is not None and not isinstance(at, ChangePosition):
        raise TypeError(f"{_SUBJECT}: expected a Mark, as a cut or a reader gives it, got {at!r}")
    if at is not None:
        _open_on_all(store, messages.OpenReaderRequest(store=store.name, name=name, at=mark_message(at)))
        return RemoteReader(store, name, at)
    moments = store.moments()
    answers = store.cluster.ask("OpenReader", messages.OpenReaderRequest(store=store.name, name=name))
    known = [answer.is_known for answer in answers]
    if not any(known):
        epoch = max(moment.epoch for moment in moments) + 1
        _open_on_all(store, messages.OpenReaderRequest(store=store.name, name=name, epoch=epoch))
        return RemoteReader(store, name, ChangePosition(moments[0].life.generation, moments[0].life.life, epoch))
    if not all(known):
        some = ", ".join(str(index) for index, is_known in enumerate(known) if not is_known)
        raise FailedPreconditionError(
            f"reader {name!r}: it is missing on servers {some}: a server was restarted, or the client that opened it"
            " died meanwhile. Open it at the mark of a cut"
        )
    epoch = min(answer.epoch for answer in answers)
    return RemoteReader(store, name, ChangePosition(moments[0].life.generation, moments[0].life.life, epoch))


def _open_on_all(store: PsStore, request: messages.OpenReaderRequest) -> None:
    """Opens a reader on all servers; if one rejects it, removes it from those that did not have it before."""
    answers, errors = outcomes_of(store.cluster.begin("OpenReader", request))
    if not errors:
        return
    life = store.moments()[0].life
    close = messages.ReaderRequest(
        store=store.name, name=request.name, opened_at=messages.Mark(generation=life.generation, life=life.life)
    )
    store.cluster.tell(
        "CloseReader", [close if answer is not None and not answer.was_known else None for answer in answers]
    )
    raise errors[0]


class RemotePublisher:
    """`monolith.deltalog.publish.StorePublisher` of the rows on all servers. Not thread-safe.

    Servers keep publishing when this process ends; its successor finds them publishing.
    """

    has_own_clock = True

    def __init__(
        self, cluster: PsCluster, store: str, name: str, log: DeltaLog, publishing_config: StorePublishingConfig
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._request = messages.PublishRequest(
            store=store,
            name=name,
            log=log.place,
            base_folder=log.base_folder or "",
            interval_seconds=publishing_config.interval,
            record_bytes=publishing_config.record_bytes,
            position=b"" if publishing_config.restored is None else publishing_config.restored.to_bytes(),
        )
        self._numbers: dict[str, int] = {}
        self._is_open = False

    @property
    def numbers(self) -> dict[str, int]:
        """Part -> number of its last increment, as last reported by the servers."""
        return dict(self._numbers)

    def open(self) -> None:
        """Starts publication on every server; servers that publish already continue."""
        if not self._is_open:
            self._note(self._cluster.ask("Publish", self._request))
            self._is_open = True

    def publish(self, trained: Trained) -> int:  # noqa: ARG002 - servers derive it from the stamps of their rows
        """Makes every server publish its changes so far; returns the number of increments written."""
        self.open()
        try:
            answers = self._ask(now=True)
        except FailedPreconditionError:
            self._is_open = False  # a server was restarted
            raise
        self._note(answers)
        return sum(answer.written for answer in answers)

    def needs(self) -> dict[str, int]:
        """Returns the last published increments."""
        return self.numbers

    def before_cut(self) -> dict[str, int]:
        """Queries the servers for the position of the log."""
        answers = self._ask()
        self._note(answers)
        return {**self._numbers, **{part: number for answer in answers for part, number in answer.ended.items()}}

    def after_cut(self, mark: ChangePosition) -> dict[str, ChangePosition]:  # noqa: ARG002 - servers may have made marks of their own since
        """Returns part -> a mark after the cut, from its server."""
        answers = self._ask(saved=True)
        return {part: mark_in(answer.mark) for answer in answers for part in answer.numbers}

    def close(self) -> None:
        """Does nothing: servers keep publishing."""

    def _ask(self, *, now: bool = False, saved: bool = False) -> list[Any]:
        request = messages.PublishedRequest(store=self._store, now=now, saved=saved)
        return self._cluster.ask("Published", request)

    def _note(self, answers: list[Any]) -> None:
        self._numbers = {part: number for answer in answers for part, number in answer.numbers.items()}
