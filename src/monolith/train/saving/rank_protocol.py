"""How ranks save and restore together: rank 0 has the model directory, every rank writes and reads its own buckets.

The format is the same as that of other checkpoints: any number of ranks, parameter servers or one process can read it.
Rank 0 locks the directory and writes dense weights and manifest, while the other ranks serve its requests for their
rows over the saving connection, in the background of training. At the end rank 0 reports the outcome, and a failure on
any rank fails the save on all.

If the rows are on parameter servers, rank 0 does for them what the chief of a job does. There is no barrier: ranks make
their steps together. At the step of a save every rank waits until the servers have its updates, then rank 0 freezes the
rows of the servers, and no rank continues before that.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from monolith import collective
from monolith.checkpoint import PendingSave, SavedCheckpoint, SaveProtocol, take_cut
from monolith.checkpoint.restore import ALL_PARTS, LoadedCheckpoint, Parts, Prepared
from monolith.collective import Call, LockStep
from monolith.collective.sharded import stamps_from_plain, stamps_to_plain
from monolith.deltalog.publish import POSITION_NAME, LogPosition
from monolith.errors import OpError
from monolith.train._rank_words import error_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from monolith.checkpoint import Catalog, Staging, StateCut, TrainState
    from monolith.collective import Agreed
    from monolith.tables import BatchStamp
    from monolith.train._rank_words import RankAgreement
    from monolith.train.strategies.rank_steps import CollectiveFlag, RankSteps

P = TypeVar("P", Prepared, LoadedCheckpoint)

_OUTCOME = "end of a save"


class RankSaveProtocol(SaveProtocol):
    """Ranks that store the rows and have one model directory, on a file system that all of them see."""

    is_collective = True

    def __init__(self, part: RankSteps) -> None:
        self._part = part
        self._words = part.words
        self._saving = LockStep(collective.saving_line())
        self._future: Future[SavedCheckpoint] | None = None
        # A save in the background counts as done at the same step everywhere.
        self._writing = part.add_wish(lambda _: self._future is not None and not self._future.done())

    def run_on_first(self, what: str, work: Callable[[], Any]) -> Any:
        """Runs `work` on rank 0."""
        return self._words.broadcast(what, work)

    def run_on_writers(self, what: str, work: Callable[[], None]) -> None:
        """Runs `work` on rank 0, which has the directory."""
        self._words.broadcast(what, work)

    def subfolder(self, name: str) -> SaveProtocol:  # noqa: ARG002 - the directory of the saver has it
        """Returns a protocol for a folder of rank 0."""
        return RankSaveProtocol(self._part)

    # Saving

    def take_cut(self, state: TrainState, *, staging: Staging | None, dense_only: bool) -> StateCut:
        """Returns the cut of this rank, with the last batches of all; rank 0 writes dense weights."""
        staging = staging if self._part.is_first else None
        return with_batches_of_all(take_cut(state, staging=staging, dense_only=dense_only), self._part)

    def write(self, work: Callable[[], SavedCheckpoint], *, in_background: bool) -> SavedCheckpoint:  # noqa: ARG002
        """Writes on rank 0, while the others serve its requests; all have its outcome."""
        if not self._part.is_first:
            return self._follow_write()
        try:
            saved = work()
        except BaseException as error:
            self._tell({"error": [type(error).__name__, error.message if isinstance(error, OpError) else str(error)]})
            raise
        self._tell({"path": saved.path, "step": saved.step, "generation": saved.generation})
        return saved

    def _tell(self, outcome: Mapping[str, Any]) -> None:
        try:
            self._saving.run(Call(_OUTCOME, arguments=json.dumps(outcome).encode()), work=lambda _: None)
        except OpError:
            if "error" not in outcome:
                raise

    def _follow_write(self) -> SavedCheckpoint:
        """Serves rank 0's requests for the rows of this rank, until rank 0 reports the outcome of the save."""
        heard: list[dict[str, Any]] = []

        def end(_: Agreed, arguments: bytes) -> None:
            heard.append(json.loads(arguments))

        handlers: dict[str, Callable[[Agreed, bytes], object]] = {_OUTCOME: end}
        for store in self._part.stores:
            handlers |= store.saving_followers()
        while not heard:
            following = self._saving.follow(handlers)  # raises once the line has ended
            with suppress(OpError):  # rank 0 handles an error that all ranks raise, and still reports the outcome
                following.result()
        outcome = heard[0]
        if "error" in outcome:
            raise error_of(*outcome["error"], rank=0)
        return SavedCheckpoint(**outcome)

    def pending(self, future: Future[SavedCheckpoint]) -> PendingSave:
        """Returns the handle of a save that is done at the same step on all ranks."""
        self._future = future
        return _RankPending(future, self._writing)

    # Restoring

    def candidates(self, catalog: Catalog) -> list[str]:
        """Returns the checkpoints that rank 0 finds."""
        look = super().candidates
        found: list[str] = self._words.broadcast("the checkpoints to resume from", lambda: look(catalog))
        return found

    def prepare(self, prepare: Callable[[], P], *, check: Callable[[], None]) -> P:
        """Checks on all ranks what each reads alone, before they read tables, which they do together.

        Raises:
            OpError: names the rank and the file.
        """
        failed: list[str] | None = None
        try:
            check()
        except OpError as error:
            failed = [type(error).__name__, error.message]
        answers = self._words.gather("reading a checkpoint", failed)
        rank = next((rank for rank, each in enumerate(answers) if each is not None), None)
        if rank is not None:
            raise error_of(*answers[rank], rank=rank)
        return prepare_on_all(prepare, self._words)


class ServerRankSaveProtocol(RankSaveProtocol):
    """Ranks whose rows are on parameter servers, with one model directory."""

    def take_cut(self, state: TrainState, *, staging: Staging | None, dense_only: bool) -> StateCut:
        """Freezes the rows of the servers on rank 0, after all ranks have sent their updates."""
        self._words.run_on_all("bringing all updates to the servers", state.settle)
        taken: list[StateCut] = []

        def take() -> None:
            is_first = self._part.is_first
            taken.append(take_cut(state, staging=staging if is_first else None, dense_only=dense_only or not is_first))

        try:
            self._words.run_on_all("freezing the rows of the servers", take)
        except BaseException:
            for cut in taken:
                cut.release()
            raise
        return with_batches_of_all(taken[0], self._part)

    def restore(self, work: Callable[[], SavedCheckpoint], state: TrainState) -> SavedCheckpoint:  # noqa: ARG002
        """Restores the rows on rank 0; if the servers fail to load them, no rank continues."""
        restored: list[SavedCheckpoint] = []
        self._words.run_on_all("restoring", lambda: restored.append(work()))
        return restored[0]

    def parts(self, state: TrainState) -> Parts:
        """Returns everything on rank 0, and all but the rows on the others."""
        return ALL_PARTS if self._part.is_first else Parts(keeps=lambda name: name in state.stores)


class _RankPending(PendingSave):
    """A save that is done when it is on all ranks, as all of them knew at the last step."""

    def __init__(self, future: Future[SavedCheckpoint], writing: CollectiveFlag) -> None:
        super().__init__(future)
        self._writing = writing
        writing.is_granted = True  # until the next step changes it

    @property
    def done(self) -> bool:
        """Returns whether all ranks are done, as of the last step, so that ranks agree."""
        return self.is_written and not self._writing.is_granted


def prepare_on_all(prepare: Callable[[], P], words: RankAgreement) -> P:
    """Returns what every rank has read and checked; raises the error of any rank on all."""
    made: list[P] = []
    try:
        words.run_on_all("restoring", lambda: made.append(prepare()))
    except BaseException:
        for each in made:
            each.close()
        raise
    return made[0]


def with_batches_of_all(cut: StateCut, part: RankSteps) -> StateCut:
    """Returns the cut of a rank with the last batches of all ranks; releases it if that fails."""
    own = [stamps_to_plain(cut.applied.values()), cut.positions.get(POSITION_NAME, b"").decode()]
    try:
        answers = part.words.gather("the last batches", own)
    except BaseException:
        cut.release()
        raise
    stamps, logs = zip(*answers, strict=True)
    # For servers, rank 0 has all log positions; for rows of ranks, each rank has its own.
    positions = _with_log(cut.positions, logs) if part.shares_rows else cut.positions
    return replace(cut, applied=_newest(list(stamps)), positions=positions)


def _with_log(positions: Mapping[str, bytes], logs: Sequence[str]) -> dict[str, bytes]:
    """Returns this rank's positions, with that of the delta log of all ranks if each has reported its part."""
    others = {name: position for name, position in positions.items() if name != POSITION_NAME}
    found = LogPosition.of_all(each.encode() for each in logs)
    return others if found is None else {**others, POSITION_NAME: found.to_bytes()}


def _newest(of_ranks: list[list[list[Any]]]) -> dict[int, BatchStamp]:
    """Returns worker -> its last batch, as reported by the rank that trained it."""
    found: dict[int, BatchStamp] = {}
    for stamp in (stamp for plain in of_ranks for stamp in stamps_from_plain(plain).values()):
        if stamp.worker not in found or found[stamp.worker].seq < stamp.seq:
            found[stamp.worker] = stamp
    return found
