"""Where a task runs, and what its runner offers it."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monolith.train.async_function import AsyncFunctionMgr
from monolith.train.input_options import InputOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

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

    def __init__(self, input_options: InputOptions | None = None) -> None:
        self.input = InputOptions() if input_options is None else input_options
        """What the run was told about its input."""
        self.async_function_mgr = AsyncFunctionMgr()
        """Its hooks are attached to the session by the runner."""

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
