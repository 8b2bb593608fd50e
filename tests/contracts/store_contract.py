"""Runs the same calls on an engine and on the dictionary reference, and compares all visible results.

A test builds a program of operations, preferably random ones, and runs it with `StoreContract`. Engines with the trait
``exact`` are compared bit for bit, others within a tolerance.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import torch

from contracts.contract_sides import ContractWorker, Sides, refusal
from contracts.store_contents import changes_of, replay, require_same, require_same_rows
from contracts.store_operations import (
    Apply,
    Assign,
    CloseReader,
    CompareAll,
    Discard,
    Erase,
    Evict,
    Follow,
    Gap,
    OpenReader,
    Operation,
    Read,
    Reload,
    Restart,
    Touch,
    Train,
)
from monolith.tables import NUM_BUCKETS, snapshot
from monolith.tables.formats import BlockKind, PackedBlocks
from monolith.testing.reference_format import build_block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from contracts.contract_sides import StoreFactory
    from contracts.store_contents import Contents
    from monolith.tables import ChangePosition, ChangeReader, Cut, Store, TableConfig

_FAR_AHEAD = 1_000_000
"""Epochs; more than any program has."""


class StoreContract:
    """One run of a program on an engine and on `ReferenceStore`. A context manager, which closes the stores."""

    def __init__(self, make_store: StoreFactory, configs: Mapping[str, TableConfig]) -> None:
        self._sides = Sides(make_store, configs)
        self._workers: dict[int, ContractWorker] = {}
        self._readers: dict[str, ContractReader] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for store in self._sides.stores:
            store.close()

    def run(self, program: Iterable[Operation]) -> None:
        """Runs all operations, comparing after each.

        Raises:
            AssertionError: the engine and the reference differ.
        """
        for operation in program:
            self._run(operation)
            self._sides.compare_reads()
            for worker in self._workers.values():
                worker.compare()

    def _run(self, operation: Operation) -> None:
        match operation:
            case Read() | Apply() | Train() | Discard() | Gap() | Restart() | Evict():
                self._run_of_worker(self._worker(operation.worker), operation)
            case Assign():
                self._assign(operation)
            case Touch() | Erase():
                self._run_on_ids(operation)
            case Reload():
                self._reload(operation)
            case OpenReader() | Follow() | CloseReader():
                self._run_of_reader(operation)
            case CompareAll():
                self._compare_all(operation)

    # Workers

    def _worker(self, number: int) -> ContractWorker:
        if number not in self._workers:
            self._workers[number] = ContractWorker(self._sides, number)
        return self._workers[number]

    def _run_of_worker(
        self, worker: ContractWorker, operation: Read | Apply | Train | Discard | Gap | Restart | Evict
    ) -> None:
        match operation:
            case Read():
                worker.read(operation.batch)
            case Apply():
                worker.apply(operation)
            case Train(batches=batches, worker=number, time=time, times_per_id=times_per_id, scale=scale):
                for batch in batches:
                    worker.read(batch)
                how = Apply(worker=number, time=time, times_per_id=times_per_id, scale=scale, retry=operation.retry)
                worker.apply(how)
            case Discard():
                worker.discard()
            case Gap():
                worker.lose_a_push(operation.batch, ahead=operation.ahead)
            case Restart():
                worker.restart()
            case Evict():
                worker.evict(operation.now)

    # Rows

    def _run_on_ids(self, operation: Touch | Erase) -> None:
        name = self._sides.schema.names[operation.table]
        rows = self._sides.rows_of(operation.table, operation.ids)
        keys, buckets = torch.tensor([row.key for row in rows], dtype=torch.int64), self._sides.buckets_of(rows)
        engine, reference = self._sides.stores
        if isinstance(operation, Touch):
            for store in (engine, reference):
                store.touch(name, keys, buckets=buckets)
        else:
            counts = [store.erase(name, keys, buckets=buckets) for store in (engine, reference)]
            require_same("rows erased", *counts)

    def _assign(self, operation: Assign) -> None:
        table = self._sides.schema.tables[operation.table]
        rng = np.random.default_rng(operation.seed)
        by_bucket: dict[int, list[tuple[int, int, bytes]]] = {}
        for row in dict.fromkeys(self._sides.rows_of(operation.table, operation.ids)):
            weights = rng.standard_normal(table.dim).astype(np.float32)
            payload = weights.tobytes() + bytes(table.state_bytes)
            by_bucket.setdefault(row.bucket, []).append((row.key, operation.time, payload))
        for bucket, rows in by_bucket.items():
            block = build_block(
                BlockKind.FULL, digest=table.digest, table=operation.table, bucket=bucket, epoch=0, rows=rows
            )
            for store in self._sides.stores:
                store.assign(block, add=operation.add)

    # Readers

    def _run_of_reader(self, operation: OpenReader | Follow | CloseReader) -> None:
        reader = self._readers.get(operation.name)
        match operation:
            case OpenReader() if reader is not None:
                reader.open_again()
            case OpenReader():
                self._readers[operation.name] = self._open_reader(operation)
            case Follow() if reader is not None:
                reader.follow()
            case CloseReader() if reader is not None:
                del self._readers[operation.name]
                marks = [reader.marks]
                reader.close()
                if not self._readers and not reader.is_at_beginning:
                    self._sides.refuse_marks(marks)  # without readers all removals are discarded

    def _open_reader(self, operation: OpenReader) -> ContractReader:
        name = operation.name
        if operation.at == "now":
            return ContractReader(self._sides, name, at=None, copies=self._sides.present_contents())
        with ExitStack() as released:
            cuts = self._cut(released)
            marks = cuts[0].mark, cuts[1].mark
            copies = self._sides.contents(cuts)
            for nested in operation.meanwhile:
                self._run(nested)
            if operation.at == "cut":
                return ContractReader(self._sides, name, at=marks, copies=copies)
            beginning = marks[0]._replace(epoch=0), marks[1]._replace(epoch=0)
            return ContractReader(self._sides, name, at=beginning, copies=({}, {}))

    # Cuts

    def _cut(self, released: ExitStack) -> tuple[Cut, Cut]:
        engine, reference = (released.enter_context(store.cut()) for store in self._sides.stores)
        return engine, reference

    def _compare_all(self, operation: CompareAll) -> None:
        self._sides.present_contents()
        for name in self._sides.schema.names:
            self._sides.same(f"rows by slot of {name!r}", self._sides.stores, _rows_by_slot(name))
        with ExitStack() as released:
            cuts = self._cut(released)
            reader = None if operation.since is None else self._readers.get(operation.since)
            if reader is not None:
                self._sides.compare_changes(cuts, reader.marks, removals=not reader.is_at_beginning)
            last = cuts[0].mark, cuts[1].mark
        future = tuple(mark._replace(epoch=mark.epoch + _FAR_AHEAD) for mark in last)
        stranger = tuple(mark._replace(life=mark.life ^ 1) for mark in last)
        self._sides.refuse_marks([(future[0], future[1]), (stranger[0], stranger[1])])

    def _reload(self, operation: Reload) -> None:
        marks: list[tuple[ChangePosition, ChangePosition]] = [reader.marks for reader in self._readers.values()]
        with ExitStack() as ended:
            cuts = self._cut(ended)
            marks.append((cuts[0].mark, cuts[1].mark))
            for nested in operation.meanwhile:
                self._run(nested)
            targets = self._sides.stores if operation.in_place else self._sides.new_stores()
            if not operation.in_place:
                for store in self._sides.stores:
                    ended.callback(store.close)
            for cut, target in zip(cuts, targets, strict=True):
                _MOVES[operation.by](cut, target)
        self._sides.stores = targets
        self._resume(marks, in_place=operation.in_place)

    def _resume(self, marks: list[tuple[ChangePosition, ChangePosition]], *, in_place: bool) -> None:
        if in_place:
            for reader in self._readers.values():
                reader.refuse()
        self._readers.clear()
        for worker in self._workers.values():
            worker.resume(in_place=in_place)
        self._sides.refuse_marks(marks)


def _rows_by_slot(table: str) -> Callable[[Store], dict[int, int]]:
    return lambda store: dict(store.rows_by_slot(table))


def _move_by_blocks(cut: Cut, target: Store) -> None:
    half = NUM_BUCKETS // 2
    low, high = (list(cut.blocks(buckets, state=True)) for buckets in (range(half), range(half, NUM_BUCKETS)))
    applied, generation = cut.applied, cut.mark.generation
    cut.release()
    # One by one, and many in one buffer: the result must be the same.
    for buckets, blocks in ((range(half), low), (range(half, NUM_BUCKETS), PackedBlocks.of(high))):
        report = target.load(blocks, buckets=buckets, replace=True)
        require_same("rows loaded", report.rows, len(changes_of(blocks).rows))
    target.resume(applied=applied, generation=generation)


def _move_by_files(cut: Cut, target: Store) -> None:
    rows, generation = dict(cut.rows), cut.mark.generation
    with tempfile.TemporaryDirectory(prefix="monolith-contract-") as folder:
        path = Path(folder, "snapshot")
        snapshot.save_cut(cut, target.schema, path, drop_expired=False, generation=generation)
        report = snapshot.restore(target, path)
    require_same("rows restored", dict(report.rows), rows)
    target.resume(applied=report.applied, generation=report.generation)


_MOVES = {"blocks": _move_by_blocks, "files": _move_by_files}


class ContractReader:
    """One named reader of changes at an engine and at the reference.

    It keeps a copy of each side's rows from changes alone.
    """

    def __init__(
        self,
        sides: Sides,
        name: str,
        *,
        at: tuple[ChangePosition, ChangePosition] | None,
        copies: tuple[Contents, Contents],
    ) -> None:
        self._sides = sides
        self._name = name
        self._copies = copies
        marks = (None, None) if at is None else at
        engine, reference = (store.open_reader(name, at=mark) for store, mark in zip(sides.stores, marks, strict=True))
        self._readers: tuple[ChangeReader, ChangeReader] = engine, reference
        self.is_at_beginning = at is not None and at[1].epoch == 0
        """Whether nothing was read yet: the engine decides which removals are still available."""
        self._is_packed_next = False
        """Rounds alternate between blocks one by one and in one piece: the result must be the same."""

    @property
    def marks(self) -> tuple[ChangePosition, ChangePosition]:
        """Positions on both sides: all changes up to them were read."""
        return self._readers[0].mark, self._readers[1].mark

    def open_again(self) -> None:
        """Opens a handle of the same name, which continues at the position of the reader."""
        before = self.marks
        engine, reference = (store.open_reader(self._name) for store in self._sides.stores)
        self._readers = engine, reference
        require_same("marks of a reader opened again", self.marks, before)

    def follow(self) -> None:
        """Reads the changes, which must be the same on both sides; the copies then equal the stores."""
        exact = self._sides.exact
        reached = [reader.next_mark() for reader in self._readers]
        engine = changes_of(self._packed() if self._is_packed_next else self._readers[0].changes(state=True))
        self._is_packed_next = not self._is_packed_next
        reference = changes_of(self._readers[1].changes(state=True))
        require_same_rows("changes", engine.rows, reference.rows, exact=exact)
        if not self.is_at_beginning:
            require_same("removals", engine.removed, reference.removed)
        for copy, changes in zip(self._copies, (engine, reference), strict=True):
            replay(copy, changes)
        for reader, mark in zip(self._readers, reached, strict=True):
            reader.advance(mark)
            require_same("mark of a reader", reader.mark, mark)
        for copy, whole in zip(self._copies, self._sides.present_contents(), strict=True):
            require_same_rows("copy kept by changes", copy, whole, exact=exact)
        self.is_at_beginning = False

    def _packed(self) -> PackedBlocks:
        packed = self._readers[0].packed_changes(state=True)
        require_same("blocks in one piece", packed.count, len(list(packed)))
        return packed

    def close(self) -> None:
        """Closes the reader: its changes can no longer be requested."""
        for reader in self._readers:
            reader.close()
            reader.close()
        self.refuse()

    def refuse(self) -> None:
        """Requires that the reader is rejected: it was closed, or the stores have begun a new run id."""
        for reader in self._readers:
            refusal("mark of a reader that has ended", reader, lambda side: side.mark)
            refusal("next mark of a reader that has ended", reader, lambda side: side.next_mark())
            refusal("changes of a reader that has ended", reader, lambda side: side.changes(state=True))
            refusal("packed changes of a reader that has ended", reader, lambda side: side.packed_changes(state=True))
            reader.close()
