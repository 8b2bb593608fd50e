"""A job on a Ray cluster of two nodes that loses a server, a worker and a node, and still trains every batch once.

    python examples/ray_cluster.py

The nodes are processes of this machine, and listen on loopback alone. Ray places two parameter servers and two workers
on them, and starts again what dies; rows go between workers and servers by our own sockets. When a server dies, all go
back to the last checkpoint; when a worker does, the others go on meanwhile. Beside it, one process trains the same
model. Expected: as many steps as there are batches, and a log loss on batches that nobody was trained on that is at
most 0.02 above the one of one process, which has 0.25 or less. Needs monolith-torch[ray].
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
    """Every n-th batch."""

    def __init__(self, first: int, step: int, num_batches: int) -> None:
        super().__init__(num_batches=num_batches)
        self._first, self._step = first, step

    def make(self, number: int) -> Any:
        """The batch of this number, counted in the share."""
        return super().make(self._first + self._step * number)


class Clicks(ml.Task):
    """Predicts clicks of users on items."""

    def build(self) -> None:
        """Embeddings and a layer over them."""
        self.emb = ml.Embeddings({"user": ml.Slot(dim=4), "item": ml.Slot(dim=4)})
        self.top = nn.Linear(8, 1)

    def input_fn(self, mode: ml.train.Mode) -> Share:
        """The share of this worker; for an evaluation, batches behind those that are trained."""
        if mode != "train":
            return Share(BATCHES, 1, TEST_BATCHES)
        place = current_context()
        return Share(place.worker_index, place.num_workers, BATCHES // place.num_workers)

    def model_fn(self, features: Any, mode: ml.train.Mode) -> ml.train.Spec:  # noqa: ARG002 - the same for all
        """Log loss of the clicks."""
        logits = self.top(self.emb(features).concat()).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, features["label"])
        return ml.train.Spec(loss, predictions=logits.sigmoid(), label=features["label"])


def train_on_ray(model_dir: str) -> dict[str, Any]:
    """Runs the job, and kills what it runs on; returns what the chief said at the end."""
    ray = load_ray(loopback_only=True)
    clusters: Any = importlib.import_module("ray.cluster_utils")  # Ray's own tool for such clusters
    node = {"node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20}
    soon = {
        "health_check_period_ms": 1000,
        "health_check_failure_threshold": 3,
    }  # else a dead node is noticed after 15 s
    head = {**node, "num_cpus": 0, "include_dashboard": False, "_system_config": soon}
    cluster = clusters.Cluster(initialize_head=True, head_node_args=head)
    try:
        # When one is lost, the other takes its roles.
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
        # Processes that are killed leave files among the temporary ones; these go with the model.
        plan = LaunchPlan(
            task="ray_cluster:Clicks",
            options=options,
            environment={"TMPDIR": str(Path(model_dir).parent)},
            resources=dict.fromkeys(("ps", "worker"), Resources(memory_bytes=256 << 20)),  # one node has room for all
        )
        launcher = RayLauncher(plan)

        def kill(name: str) -> None:
            ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=False)

        kills = (
            lambda: kill("clicks-ps-0"),
            lambda: kill("clicks-worker-1"),
            lambda: cluster.remove_node(nodes[1], allow_graceful=False),
        )
        enemy = threading.Thread(target=kill_all, args=(launcher, kills), daemon=True)
        enemy.start()
        exit_code = launcher.run()
        assert exit_code == 0, f"expected the job to end well, got exit code {exit_code}"
        enemy.join(timeout=60)
        assert not enemy.is_alive(), "expected all three deaths before the end of the job"
        print(f"on Ray: {launcher.restarts} restarts")
    finally:
        ray.shutdown()
        cluster.shutdown()
    return launcher.result


def kill_all(launcher: RayLauncher, kills: tuple[Callable[[], None], ...]) -> None:
    """Lets each happen at its step."""
    for step, happen in zip(KILLS_AT, kills, strict=True):
        while launcher.global_step < step:
            time.sleep(0.02)
        happen()


def main() -> None:
    """Trains the job, then one process, and compares."""
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
