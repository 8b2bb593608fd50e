"""`Strategy`: the interface through which sessions and trainers work with the other processes of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from monolith.checkpoint import Saver
from monolith.cluster import BarrierOp
from monolith.errors import InvalidArgumentError
from monolith.train._dense_step import DenseStep, require_servers
from monolith.train._preemption import is_preemption
from monolith.train._table_pipeline import TablePipeline
from monolith.train.config.trainer_config import TrainerConfig
from monolith.train.saving.restoring import restore_to_train
from monolith.train.saving.resuming import Resumed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from monolith.checkpoint import TrainState
    from monolith.clock import Clock
    from monolith.cluster import Barrier
    from monolith.errors import OpError
    from monolith.hook import Hook
    from monolith.hooks import SaveGuard, SaverListener, SecondOrStepTimerWithTideSetting
    from monolith.tables import BatchStamp, Store, TableConfig
    from monolith.train._dense_step import DenseConfig
    from monolith.train._table_pipeline import PipelineConfig
    from monolith.train.input.shares import HasInputs
    from monolith.train.saving.resuming import OwnerProgress
    from monolith.train.session import Session
    from monolith.train.task import Mode

EndedBy = Literal["data", "stop"]
"""Why the steps of a session have ended: its input has, or a stop was requested."""


class Strategy:
    """How this process trains with the other processes of a run. Only the training thread may use it.

    A `Trainer` calls `join` when it begins to train, then `open_saver` and the functions that return hooks. A `Session`
    calls `store_factory`, `open_pipeline`, `open_dense` and `attach` whenever it builds its model, also after a
    failure, then the trainer's `restore`. `request_stop` may be called by any thread.

    The methods here are those of a process that trains alone; a subclass overrides what differs.
    """

    rebuild_limit: int | None = 20
    """How often a session is rebuilt from one checkpoint, about seven minutes for an unreachable peer; None: without
    limit."""
    is_synchronous = False
    """Whether all processes make the same steps."""

    def __init__(self) -> None:
        self.config = TrainerConfig()
        """Config of the run; that of this process after `join`."""

    # The run

    def require_config(self, config: TrainerConfig) -> None:
        """Refuses a config that this strategy cannot follow.

        Raises:
            ValueError: the config is of another strategy.
        """
        if config.sync is not None:
            raise ValueError(
                f"Trainer: config.sync is set, and {type(self).__name__} does not train in step with other ranks; give"
                " strategy=Ranks(), or leave config.sync out"
            )

    def require_session(self, mode: Mode, dense: DenseConfig) -> None:
        """Refuses settings of a session that would have no effect.

        Raises:
            InvalidArgumentError: the mode trains nothing, and other processes take part; or `dense` is about servers,
                and there are none.
        """
        require_servers(dense, None)

    def join(self, config: TrainerConfig) -> TrainerConfig:
        """Joins the other processes. Called at the beginning of each run, before anything is built.

        Returns:
            The config of this process.
        """
        self.config = config
        return config

    @property
    def is_alone(self) -> bool:
        """Whether this process has the complete trained state, so that it can be used after training."""
        return True

    @property
    def is_chief(self) -> bool:
        """Whether this process has the hooks of a chief: those that save, measure and remove rows."""
        return self.config.worker_index == 0

    @property
    def is_first(self) -> bool:
        """Whether this process writes what all processes share, such as exports, and publishes dense weights."""
        return self.is_chief

    @property
    def shares_rows(self) -> bool:
        """Whether each process of the run stores a part of the rows."""
        return False

    @property
    def follows_steps(self) -> bool:
        """Whether this process may make a step without a batch of its own, because others have one."""
        return False

    # The parts of a session

    def store_factory(self) -> Callable[[Mapping[str, TableConfig]], Store] | None:
        """Returns a function that makes the stores of one model; None: the default of the runner, in this process."""
        return None

    def open_pipeline(self, settings: PipelineConfig) -> TablePipeline:
        """Returns the order of reads and updates of the tables."""
        return TablePipeline(settings)

    def open_dense(
        self, state: TrainState, settings: DenseConfig, *, on_close: Callable[[Callable[[], None]], object]
    ) -> DenseStep:
        """Returns the update of the dense weights of a state.

        Args:
            state: The state to update.
            settings: Which operations overlap with a step, if servers store the weights.
            on_close: Registers a function to call when the session is closed or rebuilt.
        """
        return DenseStep(list(state.optimizers.values()))

    def attach(self, state: TrainState) -> None:
        """Takes the state of a session, before it is restored."""

    # Beginning and resuming

    def restore(self, state: TrainState, saver: Saver | None, *, clock: Clock) -> None:
        """Sets the initial state of a session: a checkpoint, what servers have, or nothing.

        Args:
            state: State of the session, of which `attach` was called.
            saver: Saver of this process; None: it saves nothing.
            clock: Measures waits.
        """
        if saver is not None:
            restore_to_train(self.config, saver, state, clock=clock)

    def resume(
        self, worker: int, last: BatchStamp | None, known: Sequence[OwnerProgress], *, next_batch: int
    ) -> Resumed:
        """Returns the batch after which a worker resumes that has just joined at all owners of rows and weights.

        Args:
            worker: Number of the worker.
            last: Its last batch in the state of this process.
            known: Its last batch at each owner.
            next_batch: Its next batch by the rows of this process.
        """
        dense = [each.stamp.seq + 1 for each in known if each.is_dense and each.stamp is not None]
        own = 0 if last is None else last.seq + 1
        return Resumed(last, max([own, next_batch, *dense]), {}, {})

    # Input

    @property
    def inputs(self) -> HasInputs | None:
        """Shares and file queues of the input of all processes; None: there is one share."""
        return None

    @property
    def has_input(self) -> bool:
        """Whether this process has an input; otherwise it follows the steps of others."""
        return True

    def input_position(self, worker: int, own: bytes | None) -> bytes | None:
        """Returns where the input of a worker resumes.

        Args:
            worker: Number of the worker.
            own: Position after its last batch in the state; None: it had none.
        """
        return own

    def has_more_input(self, session: Session, ended_by: EndedBy, *, while_waiting: Callable[[], None]) -> bool:
        """Decides what happens when the steps of a session have ended.

        Args:
            session: The session; it may be given the input of another worker.
            ended_by: Why its steps have ended.
            while_waiting: Called about once a second while this process waits for others.

        Returns:
            Whether the session has another input to train. Otherwise this process may end.
        """
        return False

    # Steps

    def count_step(self, step: int, stamp: BatchStamp | None, *, in_flight: int) -> int:
        """Returns the global step after a step of this process.

        Args:
            step: The global step before it.
            stamp: Stamp of its batch.
            in_flight: Number of steps, including this one, whose update an owner has not acknowledged.
        """
        return step + 1

    def settled(self) -> None:
        """Called when all updates of this process are acknowledged."""

    @property
    def stop_requested(self) -> bool:
        """Whether all processes end after the current step."""
        return False

    def request_stop(self, stop_session: Callable[[], None]) -> None:
        """Stops this process, together with others where all make the same steps.

        Args:
            stop_session: Ends the session of this process after the current step.
        """
        stop_session()

    # Saving

    def open_saver(self) -> Saver | None:
        """Returns the saver of the run's checkpoints; None: this process saves none."""
        model_dir = self.config.model_dir
        return None if model_dir is None else Saver(model_dir, **self.saver_options(others_wait=False))

    def saver_options(self, *, others_wait: bool) -> dict[str, Any]:
        """Returns the options of a saver. Processes that wait for a save do so until it has its cut, not to its end."""
        saving = self.config.saving
        return {
            "max_to_keep": saving.max_to_keep,
            "keep_every_hours": saving.keep_every_hours,
            "background": saving.background or (others_wait and not self.config.deterministic),
            "restoring": self.config.restoring,
        }

    # Hooks

    @property
    def removes_rows(self) -> bool:
        """Whether this process removes expired rows from stores."""
        return True

    def hooks_before_savers(self) -> list[Hook]:
        """Returns hooks of the chief, which come before those that save."""
        return []

    def hooks_after_savers(self) -> list[Hook]:
        """Returns hooks of every process, which come after those that save."""
        return []

    def shared_timer(self, timer: SecondOrStepTimerWithTideSetting) -> SecondOrStepTimerWithTideSetting:
        """Returns a timer of saves that is due at the same step wherever saves are made together."""
        return timer

    def save_guards(self) -> list[SaveGuard]:
        """Returns what holds other processes during a save."""
        return []

    def saver_listeners(self, saver: Saver) -> list[SaverListener]:
        """Returns what is notified of the full checkpoints of a saver, before other listeners."""
        return []

    @property
    def barrier(self) -> Barrier:
        """The barrier of the controller; local to this process if there are no others."""
        return BarrierOp(1)

    # Failures

    def is_recoverable(self, error: OpError, step: int) -> bool:
        """Returns whether the session can be rebuilt after an error at a step; otherwise the run ends with it."""
        return is_preemption(error)

    def begin_again(self, session: Session) -> None:
        """Resets what belongs to the failed steps, before a session is rebuilt."""

    def reconnect(self) -> None:
        """Returns when the other processes answer; called before each attempt to rebuild a session."""

    def pause(self, seconds: float, *, clock: Clock) -> None:
        """Waits between two attempts to rebuild a session."""
        clock.sleep(seconds)

    def fails_alike(self, error: BaseException) -> bool:
        """Returns whether all processes that save together fail with this error, so that they can save after it."""
        return True


def refuse_mode(mode: Mode, what: str) -> None:
    """Refuses a session that trains nothing where other processes store its model."""
    if mode != "train":
        raise InvalidArgumentError(
            f"session: {what} that are trained, and mode is {mode!r}; restore a checkpoint of them, which has the form"
            " of one process"
        )
