"""``python -m monolith.testing.distributed_binary``: one process of a small job, for end-to-end tests of jobs.

Start one for each server and each worker, with its own index; they find each other by files below ``--test_dir``::

    python -m monolith.testing.distributed_binary --test_case test0 --test_dir /tmp/t --server_type ps --index 0 \
        --num_ps 1 --num_workers 1

``test0`` is a plain run, ``test1`` keeps its servers alive, in ``test2`` every worker fails once and retries.

It exists for parity with ByteDance Monolith's `cpu_training_distributed_test_binary`.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

import torch

from monolith.cluster.discovery import HostServiceDiscovery
from monolith.errors import DeadlineExceededError
from monolith.files import text_files
from monolith.hook import Hook
from monolith.nn import Embeddings, Slot
from monolith.train import Spec, Task
from monolith.train.compat import DistributedCpuTrainingConfig
from monolith.train.roles import JobProgramConfig, distributed_train

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from monolith.hook import HookedSession, StepContext
    from monolith.train import InstantiableParams, Mode, Params, Trainer

__all__ = ["FeatureTask", "RaiseErrorHook", "SyncHook", "main"]

_LOOK_SECONDS = 0.1
_LONGEST_WAIT_SECONDS = 120.0
_NUM_BATCHES = 5


class SyncHook(Hook):
    """Reports that this worker's session is ready; the chief waits until all are.

    Args:
        folder: Folder of the reports.
        index: Index of this worker.
        num_workers: Number of workers.
    """

    def __init__(self, folder: str, index: int, num_workers: int) -> None:
        self._folder = folder
        self._index = index
        self._num_workers = num_workers

    def after_create_session(self, session: HookedSession) -> None:  # noqa: ARG002 - a hook's signature
        """Writes the report, and on the chief waits for the others."""
        text_files.write_text(f"{self._folder}/{self._index}", "here")
        deadline = time.monotonic() + _LONGEST_WAIT_SECONDS
        while self._index == 0 and len(text_files.names_in(self._folder)) < self._num_workers:
            if time.monotonic() > deadline:
                raise TimeoutError(f"SyncHook: {text_files.names_in(self._folder)} of {self._num_workers} workers came")
            time.sleep(_LOOK_SECONDS)


class RaiseErrorHook(Hook):
    """Fails the first step of this process as a server that does not answer would."""

    def __init__(self) -> None:
        self._has_raised = False

    def before_run(self, context: StepContext) -> None:  # noqa: ARG002 - a hook's signature
        """Raises once."""
        if not self._has_raised:
            self._has_raised = True
            raise DeadlineExceededError("RaiseErrorHook: raised once")


class FeatureTask(Task):
    """Looks up one feature and learns from it; every worker reads the same few batches."""

    @classmethod
    def params(cls) -> InstantiableParams:
        """Returns the parameters, with hooks of the test."""
        p = super().params()
        p.define("training_hooks", [], "Hooks of every worker.")
        return p

    def build(self) -> None:
        """Creates one table."""
        self.emb = Embeddings({"slot": Slot(dim=4)})

    def input_fn(self, mode: Mode) -> Iterable[Any]:  # noqa: ARG002 - the same for all
        """Returns five batches of the same ids, for each worker."""
        return self.ctx.unshared([{"slot": torch.arange(1, 9), "label": torch.ones(8)} for _ in range(_NUM_BATCHES)])

    def model_fn(self, features: Any, mode: Mode) -> Spec:  # noqa: ARG002 - the same for all
        """Returns the distance of the sums from the label."""
        predictions = self.emb(features)["slot"].sum(1)
        loss = (predictions - features["label"]).square().mean()
        return Spec(loss, predictions=predictions, label=features["label"])

    def training_hooks(self) -> Sequence[Hook]:
        """Returns the hooks of the test."""
        return list(self.p.training_hooks)


def run_job(args: argparse.Namespace, params: Params, settings: JobProgramConfig) -> Trainer | None:
    """Runs one process of the job that the flags describe."""
    folder = f"{args.test_dir}/{args.test_case}"
    config = DistributedCpuTrainingConfig(
        model_dir=f"{folder}/model",
        server_type=args.server_type,
        index=args.index,
        num_ps=args.num_ps,
        num_workers=args.num_workers,
        num_extra_ps=args.num_extra_ps,
        num_redundant_ps=args.num_redundant_ps,
        uuid=args.uuid,
        host=args.host,
        retry_wait_in_secs=args.retry_wait_in_secs,
        use_native_multi_hash_table=args.use_native_multi_hash_table,
    )
    params.train.max_pending_seconds_for_barrier = 2
    if args.server_type == "worker":
        sync = SyncHook(f"{folder}/sync", args.index, args.num_workers)
        params.training_hooks = [sync, *params.training_hooks]
    return distributed_train(config, HostServiceDiscovery(f"{folder}/discovery"), params, settings=settings)


def _settings(**changed: Any) -> JobProgramConfig:
    """Returns the settings that the program of ByteDance Monolith overrides for the process."""
    return JobProgramConfig(query_failure_handler=lambda _: time.sleep(_LOOK_SECONDS), benchmark_seconds=0.5, **changed)


def test0(args: argparse.Namespace) -> Trainer | None:
    """Runs the plain case."""
    return run_job(args, FeatureTask.params(), _settings())


def test1(args: argparse.Namespace) -> Trainer | None:
    """Runs a job whose servers stay alive."""
    return run_job(args, FeatureTask.params(), _settings(shut_down_servers=False))


def test2(args: argparse.Namespace) -> Trainer | None:
    """Runs a job in which every worker fails once, and retries."""
    params = FeatureTask.params()
    params.training_hooks = [RaiseErrorHook()]
    return run_job(args, params, _settings())


_CASES: dict[str, Callable[[argparse.Namespace], Trainer | None]] = {"test0": test0, "test1": test1, "test2": test2}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one process; returns 0 on success."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--test_case", choices=sorted(_CASES), required=True)
    parser.add_argument("--test_dir", required=True)
    parser.add_argument("--server_type", choices=["ps", "worker"], required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--num_ps", type=int, required=True)
    parser.add_argument("--num_workers", type=int, required=True)
    parser.add_argument("--num_extra_ps", type=int, default=0)
    parser.add_argument("--num_redundant_ps", type=int, default=0)
    parser.add_argument("--uuid", default="")
    parser.add_argument("--use_native_multi_hash_table", action="store_const", const=True, default=None)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--retry_wait_in_secs", type=int, default=0)
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    torch.set_num_threads(1)
    _CASES[args.test_case](args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
