"""The training system: what runs a task.

May import: everything below it, and `hooks`. Read `task.py` first, then `session.py`: a session runs a task step by
step. `trainer.py` is the comfortable way to use one.
"""

from __future__ import annotations

from monolith.train.async_function import AsyncFunctionMgr
from monolith.train.batch_time import REQUEST_TIME, time_of
from monolith.train.collections import Collections, add_to_collections, get_collection
from monolith.train.context import Context, TaskContext, current_context, use_context
from monolith.train.current_session import get_current_session
from monolith.train.instantiable_params import InstantiableParams, params, with_params
from monolith.train.params import Params, copy_params_to, update_params
from monolith.train.registry import SingleTaskModelParams, find_task, register_single_task_model, task_registry
from monolith.train.session import Session, SessionState
from monolith.train.step_result import StepResult
from monolith.train.task import ExportMode, Mode, Spec, Task

__all__ = ["AsyncFunctionMgr"]
