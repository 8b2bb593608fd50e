"""Context of a task: where it runs, and what its runner offers."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from monolith.data import Dataset
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.train.async_function import AsyncFunctionMgr
from monolith.train.config.input_options import InputConfig
from monolith.train.input.shares import InputShares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from monolith.data.records import Records
    from monolith.data.sources import Files, Paths, StorageOptions
    from monolith.dependence import RecordedCall

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The place of this process in a job."""

    num_ps: int = 0
    """Parameter servers, as the options of the run give them; a run of one process starts none."""
    ps_index: int = 0
    """Which of them this is, if it is one."""
    num_workers: int = 1
    """Workers, the chief among them."""
    worker_index: int = 0
    """Which of them this is; 0 is the chief."""
    model_name: str = ""
    """Under which name the model is served and measured."""
    sync_backend: Any = None
    """Backend to which changes of the tables are sent."""
    server_type: str = ""
    """``ps``, ``worker``, or nothing outside of a job."""


_CONTEXT: ContextVar[Context] = ContextVar("monolith_task_context", default=Context())  # noqa: B039 - it is frozen


_ASKED: ContextVar[set[str] | None] = ContextVar("monolith_place_asked", default=None)
"""Collects the names of the context values by which an `input_fn` chooses its batches."""


def _note_asked(what: str) -> None:
    names = _ASKED.get()
    if names is not None:
        names.add(what)


@contextmanager
def use_context(context: Context) -> Iterator[Context]:
    """Makes `current_context` return this one inside; nests, and restores the previous one on exit."""
    token = _CONTEXT.set(context)
    try:
        yield context
    finally:
        _CONTEXT.reset(token)


def current_context() -> Context:
    """Returns the innermost context; outside of all: one process, one worker, no name."""
    _note_asked("current_context")
    return _CONTEXT.get()


class TaskContext:
    """What a runner offers to its task: functions that run concurrently with the next step, and input options."""

    def __init__(self, input_options: InputConfig | None = None, *, training: InputShares | None = None) -> None:
        self.input = InputConfig() if input_options is None else input_options
        """Input options of the run."""
        self.training = InputShares() if training is None else training
        """Share of the input that this process reads in training."""
        self._shares = InputShares()
        self.async_function_mgr = AsyncFunctionMgr()
        """Asynchronous functions; the runner attaches their hooks to the session."""
        self.extra_outputs: dict[str, Any] | None = None
        """Receives the values of `Task.add_extra_output` while a model is exported; None otherwise."""

    @property
    def shares(self) -> InputShares:
        """This process's share of the input: ``index, count = self.ctx.shares``; (0, 1), all of it, outside training.

        An `input_fn` that reads this property, or `current_context`, shards the input itself: its result is read
        unchanged. The runner shards the result of any other `input_fn`, unless it is `unshared`.
        """
        _note_asked("ctx.shares")
        return self._shares

    def files(
        self, paths: Paths, *, seed: int | None = None, storage_options: StorageOptions = None, name: str = "files"
    ) -> Files:
        """Returns the files that this worker is to read, for a dataset: ``RecordDataset(self.ctx.files("day-*"))``.

        Every worker has its share of the files: every n-th file or, with ``input.dynamic_sharding``, the next one of a
        shared queue. Outside training, as in an evaluation, it has all files.

        Args:
            paths: Paths, globs, ranges and URLs as for `FileSet`; the same on all workers.
            seed: Shuffles the files, differently in each epoch; None keeps them sorted.
            storage_options: For the file system of URLs.
            name: Name of the queue, if a task shares more than one list of files.
        """
        return self._shares.files(paths, seed=seed, storage_options=storage_options, name=name)

    def examples(self, batch_size: int) -> Dataset[Records]:
        """Returns the examples of the run's stream, for `input_fn`: ``self.ctx.examples(256).parse(parser)``.

        They come in blocks of at most `batch_size`, and no example waits long for others. Position and state are saved
        together: each example is trained once.

        Raises:
            FailedPreconditionError: the run has no stream.
        """
        if self.input.stream is None:
            raise FailedPreconditionError(
                "self.ctx.examples: the task reads a stream, and the run was given none; run it with `monolith train"
                " TASK --stream PLACE`, or give InputConfig(stream=ExampleStream(PLACE))"
            )
        return self.input.stream.blocks(batch_size)

    def unshared(self, batches: _T) -> _T:
        """Returns an input that every worker reads completely, for `input_fn`: ``return self.ctx.unshared(batches)``.

        For batches that differ between workers already, and for those that each worker must train.
        """
        _note_asked("ctx.unshared")
        return batches

    @contextmanager
    def reading_as(self, shares: InputShares) -> Iterator[None]:
        """Makes `files` return these shares inside."""
        before, self._shares = self._shares, shares
        try:
            yield
        finally:
            self._shares = before

    def shared(self, input_fn: Callable[[], Any]) -> Any:
        """Returns what this process reads of an input: its share, or the full result of a function that reads `shares`.

        Raises:
            InvalidArgumentError: several processes read the input and it cannot be sharded; the message gives a fix. Or
                the run was started with another number of workers, and the function shards by the current number.
        """
        if self._shares.is_empty:
            return ()
        names: set[str] = set()
        token = _ASKED.set(names)
        try:
            source = input_fn()
        finally:
            _ASKED.reset(token)
        then, now = self._shares.num_workers, self.training.num_workers
        if names - {"ctx.shares"} and then != now:
            raise InvalidArgumentError(
                f"input: the checkpoint is of {then} workers, and now there are {now}, by which input_fn chooses its"
                f" batches ({', '.join(sorted(names))}); start {then}, or choose by index, count = self.ctx.shares,"
                " which stay those of before"
            )
        read = source if names else self._shares.of(source)
        if self._shares.num_workers > 1:
            how = "as its input_fn has chosen it" if names else "its share"
            description = repr(source) if isinstance(source, Dataset) else type(source).__name__
            _log.info("input: worker %d of %d reads %s: %s", *self._shares, how, description)
        return read

    def add_async_function(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        is_async: bool | None = None,
        queue_name: str = "async_queue",
    ) -> RecordedCall[..., Any]:
        """Returns the call to make in each step, so that `target` runs during the next one: see `AsyncFunctionMgr`."""
        return self.async_function_mgr.add_async_function(target, args, kwargs, is_async, queue_name)
