"""The training system: what runs a task.

May import: everything below it. Read `task.py` first, then `session.py`: a session runs a task step by
step. `trainer.py` is the comfortable way to use one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith._deprecated import former_names as _former_names
from monolith.hooks.current_session import get_current_session
from monolith.train._run_hooks import StopAtStep
from monolith.train._training_loop import enable_monkey_patch, preemption_errors
from monolith.train.async_function import AsyncFunctionMgr
from monolith.train.batch_time import time_of
from monolith.train.collections import Collections, add_to_collections, get_collection
from monolith.train.compat.derive_config import trainer_config_of
from monolith.train.compat.flat_config import Origin
from monolith.train.compat.options import CpuTrainingConfig, DistributedCpuTrainingConfig, RunnerConfig
from monolith.train.compat.run_config import RunConfig
from monolith.train.config.input_options import InputConfig
from monolith.train.config.job_config import JobConfig, JobProgramConfig
from monolith.train.config.trainer_config import (
    ControlConfig,
    DeviceConfig,
    ExportingConfig,
    MarkerFilesConfig,
    PipelineConfig,
    PublishingConfig,
    ReportingConfig,
    RestoringConfig,
    SavingConfig,
    TablesConfig,
    TrainerConfig,
)
from monolith.train.context import Context, TaskContext, current_context, use_context
from monolith.train.estimator import Estimator
from monolith.train.export.two_stage import ItemVectors, TwoStageTask
from monolith.train.history import History
from monolith.train.parameters import flags
from monolith.train.parameters.argument_lists import check_list, extend_as_list, to_list, to_snake_case
from monolith.train.parameters.instantiable_params import InstantiableParams, params, with_params
from monolith.train.parameters.params import Params, copy_params_to, update_params
from monolith.train.parameters.registry import (
    SingleTaskModelParams,
    find_task,
    register_single_task_model,
    task_registry,
)
from monolith.train.predict.candidate_items import CandidateItems, item_ids
from monolith.train.roles.debugging_info import get_debugging_info_file_name, get_meta_graph_file_name
from monolith.train.roles.distributed_runner import distributed_train
from monolith.train.roles.local_runner import local_train, make_trainer
from monolith.train.roles.preparation import prepare_run
from monolith.train.roles.ps_benchmark import BenchmarkConfig, PsBenchMarkTask
from monolith.train.roles.sync_runner import distributed_sync_train
from monolith.train.session import Session, SessionState
from monolith.train.step_result import StepResult
from monolith.train.task import ExportMode, Mode, Spec, Task
from monolith.train.task_wrappers import EofAwareTask
from monolith.train.trainer import Trainer

__all__ = [
    "AsyncFunctionMgr",
    "BenchmarkConfig",
    "CandidateItems",
    "Collections",
    "Context",
    "ControlConfig",
    "CpuTrainingConfig",
    "DeviceConfig",
    "DistributedCpuTrainingConfig",
    "EofAwareTask",
    "Estimator",
    "ExportMode",
    "ExportingConfig",
    "History",
    "InputConfig",
    "InstantiableParams",
    "ItemVectors",
    "JobConfig",
    "JobProgramConfig",
    "MarkerFilesConfig",
    "Mode",
    "Origin",
    "Params",
    "PipelineConfig",
    "PsBenchMarkTask",
    "PublishingConfig",
    "ReportingConfig",
    "RestoringConfig",
    "RunConfig",
    "RunnerConfig",
    "SavingConfig",
    "Session",
    "SessionState",
    "SingleTaskModelParams",
    "Spec",
    "StepResult",
    "StopAtStep",
    "TablesConfig",
    "Task",
    "TaskContext",
    "Trainer",
    "TrainerConfig",
    "TwoStageTask",
    "add_to_collections",
    "check_list",
    "copy_params_to",
    "current_context",
    "distributed_sync_train",
    "distributed_train",
    "enable_monkey_patch",
    "extend_as_list",
    "find_task",
    "flags",
    "get_collection",
    "get_current_session",
    "get_debugging_info_file_name",
    "get_meta_graph_file_name",
    "item_ids",
    "local_train",
    "make_trainer",
    "params",
    "preemption_errors",
    "prepare_run",
    "register_single_task_model",
    "task_registry",
    "time_of",
    "to_list",
    "to_snake_case",
    "trainer_config_of",
    "update_params",
    "use_context",
    "with_params",
]


def __getattr__(name: str) -> Any:
    # A process-wide setting, so it is read on access.
    if name == "PREEMPTION_ERRORS":
        return preemption_errors()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(
        __name__, {"InputOptions": "InputConfig", "JobSettings": "JobProgramConfig"}, __getattr__
    )
