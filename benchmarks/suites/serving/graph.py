"""The graph of an export against the module that it was made of, called with the same rows: processor time."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import torch

from benchmarks.suites.serving.cpu_turns import take_cpu_turns
from benchmarks.suites.serving.served_deepfm import CANDIDATES, DIM, NUM_SLOTS, ServedDeepFm, exported, filled_session
from monolith.cli._bench import machine, ours
from monolith.cli._bench.measurement import Measurement, Sense, median_ratio, spread
from monolith.export.opened import open_export
from monolith.export.signature import DEFAULT_SIGNATURE

if TYPE_CHECKING:
    from monolith.cli._bench.setting import Setting
    from monolith.train import Task

LIMIT = 1.15


def measure(setting: Setting) -> list[Measurement]:
    """Both are given the rows of all slots in one buffer, as training and the layout have them."""
    ours.use_threads(1)
    with (
        machine.scratch_folder(setting.directory, needed_bytes=1 << 28) as folder,
        filled_session(NUM_SLOTS * CANDIDATES) as session,
    ):
        opened = open_export(exported(session, folder / "export"))
        graph, weights = opened.graph(DEFAULT_SIGNATURE, joins_rows=True), opened.weights()
        rows = torch.randn(CANDIDATES, NUM_SLOTS * (1 + DIM))
        given = [weights[name] if kind == "weight" else rows for kind, name in graph.inputs]

        def call_graph(_: int) -> torch.Tensor:
            with torch.inference_mode():
                return graph.call(*given)[0]

        def call_module(_: int) -> torch.Tensor:
            with torch.inference_mode():
                return _eager(session.task, rows)

        if not torch.equal(call_graph(0), call_module(0)):
            raise AssertionError("the graph and the module do not compute the same")
        times = take_cpu_turns({"module": call_module, "graph": call_graph}, setting)
    return [
        Measurement(
            row="serving_graph",
            measure=f"graph of an export, {CANDIDATES} candidates",
            figure=statistics.median(times["graph"]),
            unit="us",
            peer="eager module",
            peer_figure=statistics.median(times["module"]),
            ratio=median_ratio(times["graph"], times["module"]),
            limit=LIMIT,
            sense=Sense.AT_MOST,
            note=f"processor time; the same bits; {spread(times['graph'])}",
        )
    ]


def _eager(task: Task, rows: torch.Tensor) -> torch.Tensor:
    if not isinstance(task, ServedDeepFm):
        raise TypeError(f"the task of these rows is expected, got {type(task).__name__}")
    return task.logits(rows.view(len(rows), NUM_SLOTS, 1 + DIM)).sigmoid()
