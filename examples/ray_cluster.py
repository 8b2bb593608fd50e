"""A job on a Ray cluster of two nodes that loses a server, a worker and a node, and trains every batch once.

    python examples/ray_cluster.py

The nodes are processes of this machine that listen on loopback only. Ray places two parameter servers and two workers
on them and restarts those that die. Workers and servers exchange rows over their own sockets. If a server dies, the job
rolls back to the last checkpoint; if a worker dies, the other worker continues. For comparison, one process trains the
same model. Expected: one step per batch, and a log loss on unseen batches at most 0.02 above that of one process, which
is 0.25 or less. Needs monolith-torch[ray].
"""

from __future__ import annotations

import importlib
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

import monolith as ml
from monolith.cluster.runtimes import NAMESPACE, load_ray
from monolith.launch import LaunchPlan, RayLauncher, Resources
from monolith.testing import NumberedBatches
from monolith.train import RunnerConfig, Trainer, TrainerConfig, current_context

if TYPE_CHECKING:
    from collections.abc import Callable

BATCHES, TEST_BATCHES, SAVE_STEPS = 2400, 20, 100
KILLS_AT = (300, 800, 1300)
MOST_LOSS, MOST_MORE = 0.25, 0.02


class Share(NumberedBatches):
    """Every n-th batch, from a first one."""

    def __init__(self, first: int, step: int, num_batches: int) -> None:
        super().__init__(num_batches=num_batches)
        self._first, self._step = first, step

    def make(self, number: int) -> Any:
        """Generate batch ``number`` of the share."""
        return super().make(self._first + self._step * number)


class Clicks(ml.Task):
    """Predicts clicks of users on items."""

    def build(self) -> None:
        """Make the embeddings and the layer over them."""
        self.emb = ml.Embeddings({"user": ml.Slot(dim=4), "item": ml.Slot(dim=4)})
        self.top = nn.Linear(8, 1)

    def input_fn(self, mode: ml.train.Mode) -> Share:
        """Return this worker's share of the batches; for evaluation, the batches after all of these."""
        if mode != "train":
            return Share(BATCHES, 1, TEST_BATCHES)
        context = current_context()
        return Share(context.worker_index, context.num_workers, BATCHES // context.num_workers)

    def model_fn(self, features: Any, mode: ml.train.Mode) -> ml.train.Spec:  # noqa: ARG002 - the same for all
        """Compute the log loss of the clicks."""
        logits = self.top(self.emb(features).concat()).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, features["label"])
        return ml.train.Spec(loss, predictions=logits.sigmoid(), label=features["label"])


def train_on_ray(model_dir: str) -> dict[str, Any]:
    """Run the job, kill a server, a worker and a node, and return the result of the chief."""
    ray = load_ray(loopback_only=True)
    clusters: Any = importlib.import_module("ray.cluster_utils")  # Ray's tool for clusters on one machine
    node = {"node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20}
    health_checks = {  # by default Ray notices a dead node after 15 s
        "health_check_period_ms": 1000,
        "health_check_failure_threshold": 3,
    }
    head = {**node, "num_cpus": 0, "include_dashboard": False, "_system_config": health_checks}
    cluster = clusters.Cluster(initialize_head=True, head_node_args=head)
    try:
        # If one node is lost, Ray moves its processes to the other.
        nodes = [cluster.add_node(**node, num_cpus=4) for _ in range(2)]
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        options = RunnerConfig(
            num_ps=2,
            num_workers=2,
            model_dir=model_dir,
            save_checkpoints_steps=SAVE_STEPS,
            uuid="clicks",
            retry_wait_in_secs=1,
        )
        # Killed processes leave temporary files; these are deleted together with the model.
        plan = LaunchPlan(
            task="ray_cluster:Clicks",
            options=options,
            environment={"TMPDIR": str(Path(model_dir).parent)},
            resources=dict.fromkeys(("ps", "worker"), Resources(memory_bytes=256 << 20)),  # all fit on one node
        )
        launcher = RayLauncher(plan)

        def kill(name: str) -> None:
            ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=False)

        kills = (
            lambda: kill("clicks-ps-0"),
            lambda: kill("clicks-worker-1"),
            lambda: cluster.remove_node(nodes[1], allow_graceful=False),
        )
        killer = threading.Thread(target=kill_all, args=(launcher, kills), daemon=True)
        killer.start()
        exit_code = launcher.run()
        assert exit_code == 0, f"expected the job to end well, got exit code {exit_code}"
        killer.join(timeout=60)
        assert not killer.is_alive(), "expected all three kills before the end of the job"
        print(f"on Ray: {launcher.restarts} restarts")
    finally:
        ray.shutdown()
        cluster.shutdown()
    return launcher.result


def kill_all(launcher: RayLauncher, kills: tuple[Callable[[], None], ...]) -> None:
    """Run each kill when the job has reached its step."""
    for step, kill in zip(KILLS_AT, kills, strict=True):
        while launcher.global_step < step:
            time.sleep(0.02)
        kill()


def main() -> None:
    """Train on Ray and in one process, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        together, alone = str(Path(folder) / "ray"), str(Path(folder) / "alone")
        steps = train_on_ray(together)["global_step"]
        trainer = Trainer(Clicks, TrainerConfig(model_dir=alone))
        trainer.train()
        loss = trainer.evaluate()["loss"]
        loss_on_ray = Trainer(Clicks, TrainerConfig(model_dir=together)).evaluate()["loss"]
    print(f"on Ray: {steps} steps, log loss {loss_on_ray:.4f}; in one process {loss:.4f}")
    assert steps == BATCHES, f"expected {BATCHES} steps, got {steps}"
    assert loss <= MOST_LOSS, f"expected at most {MOST_LOSS} in one process"
    assert loss_on_ray <= loss + MOST_MORE, f"expected at most {MOST_MORE} more on Ray"


if __name__ == "__main__":
    main()
