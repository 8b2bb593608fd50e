"""Where a task runs, and what its runner offers it."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monolith.errors import FailedPreconditionError
from monolith.train.async_function import AsyncFunctionMgr
from monolith.train.input_options import InputOptions
from monolith.train.input_shares import InputShares

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from monolith.data.dataset import Dataset
    from monolith.data.records import Records
    from monolith.data.sources.file_feed import Files
    from monolith.dependence import RecordedCall

__all__ = ["Context", "TaskContext", "current_context", "use_context"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The place of this process in a job."""

    num_ps: int = 0
    """Parameter servers; 0: the tables of this process are in one piece."""
    ps_index: int = 0
    """Which of them this is, if it is one."""
    num_workers: int = 1
    """Workers, the chief among them."""
    worker_index: int = 0
    """Which of them this is; 0 is the chief."""
    model_name: str = ""
    """Under which name the model is served and measured."""
    sync_backend: Any = None
    """Where changes of the tables are sent."""
    server_type: str = ""
    """``ps``, ``worker``, or nothing outside of a job."""


_CONTEXT: ContextVar[Context] = ContextVar("monolith_task_context", default=Context())  # noqa: B039 - it is frozen


@contextmanager
def use_context(context: Context) -> Iterator[Context]:
    """Inside, `current_context` returns this one; it nests, and leaving it brings back the one before."""
    token = _CONTEXT.set(context)
    try:
        yield context
    finally:
        _CONTEXT.reset(token)


def current_context() -> Context:
    """The innermost context; outside of all: one process, one worker, no name."""
    return _CONTEXT.get()


class TaskContext:
    """What a runner offers to its task: functions that run beside the next step, and what it was told of the input."""

    def __init__(self, input_options: InputOptions | None = None, *, training: InputShares | None = None) -> None:
        self.input = InputOptions() if input_options is None else input_options
        """What the run was told about its input."""
        self.training = InputShares() if training is None else training
        """What this process reads while it trains, with others or alone."""
        self.shares = InputShares()
        """What it reads now: all, where it does not train."""
        self.async_function_mgr = AsyncFunctionMgr()
        """Its hooks are attached to the session by the runner."""
        self.extra_outputs: dict[str, Any] | None = None
        """What `Task.add_extra_output` is given while a model is exported; None: nobody wants it."""

    def files(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        seed: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        name: str = "files",
    ) -> Files:
        """The files that this worker is to read, for a dataset: ``RecordDataset(self.ctx.files("day-*"))``.

        Every worker has its share of them: every n-th file or, with ``input.dynamic_sharding``, the next one of a queue
        that all share. Where nothing is trained, as in an evaluation, it has all files.

        Args:
            paths: Paths, globs, ranges and URLs as for `FileSet`; the same on all workers.
            seed: Shuffles the files, differently in each epoch; None keeps them sorted.
            storage_options: For the file system of URLs.
            name: Tells queues apart, where a task shares more than one list of files.
        """
        return self.shares.files(paths, seed=seed, storage_options=storage_options, name=name)

    def examples(self, batch_size: int) -> Dataset[Records]:
        """The examples of the stream that the run was given, for `input_fn`: ``self.ctx.examples(256).parse(parser)``.

        They come in blocks of at most so many, and no example waits long for others. Position and state are saved
        together: each example is trained once.

        Raises:
            FailedPreconditionError: the run was given none.
        """
        if self.input.stream is None:
            raise FailedPreconditionError(
                "self.ctx.examples: the task reads a stream, and the run was given none; run it with `monolith train"
                " TASK --stream PLACE`, or give InputOptions(stream=ExampleStream(PLACE))"
            )
        return self.input.stream.blocks(batch_size)

    @contextmanager
    def reading_as(self, shares: InputShares) -> Iterator[None]:
        """Inside, `files` gives these shares."""
        before, self.shares = self.shares, shares
        try:
            yield
        finally:
            self.shares = before

    def add_async_function(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        is_async: bool | None = None,
        queue_name: str = "async_queue",
    ) -> RecordedCall[..., Any]:
        """The call to make in each step, so that `target` runs beside the next one: see `AsyncFunctionMgr`."""
        return self.async_function_mgr.add_async_function(target, args, kwargs, is_async, queue_name)
