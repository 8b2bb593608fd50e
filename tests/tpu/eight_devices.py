"""Run as a program: trains the example on eight devices of the CPU and prints what came out, as JSON."""

from __future__ import annotations

import json
import sys

from monolith.testing import ExampleTask
from monolith.tpu import TpuConfig, TPURunner, load_backend
from tpu.jax_tasks import rows, weights


class Seeded(ExampleTask):
    """With weights that do not depend on a seed of the process."""

    def build(self) -> None:
        super().build()
        for parameter in self.top.parameters():
            parameter.data.fill_(0.1)


def params_for(batch_size: int) -> object:
    params = Seeded.params()
    params.num_batches, params.batch_size = 8 * 20, batch_size
    params.train.per_replica_batch_size = batch_size
    return params


if __name__ == "__main__":
    devices = load_backend().jax.devices("cpu")
    runner = TPURunner(params_for(4), TpuConfig(), devices=devices)  # type: ignore[arg-type]
    estimator, replicas = runner.create_tpu_estimator(runner.task_param.instantiate())
    state = estimator.train()
    ids, vectors = rows(state, "user")
    found = {
        "devices": len(devices),
        "replicas": replicas,
        "batch": [estimator.train_batch_size, estimator.eval_batch_size],
        "step": state.global_step,
        "weights": {name: value.tolist() for name, value in weights(state).items()},
        "ids": ids.tolist(),
        "vectors": vectors.tolist(),
    }
    json.dump(found, sys.stdout)
