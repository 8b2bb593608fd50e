"""Row optimizers against SGD: update times, per byte of row that an update has to move.

An optimizer with state moves longer rows than SGD: header, weights and state come from memory and go back. Where memory
is the limit, a row of twice the bytes may take twice the time and the optimizer would have cost nothing. So the
slowdown against SGD is divided by the quotient of the row sizes (header, weights, state and padding, as the table lays
them out), and this normalised slowdown is judged. The slowdown as the clock shows it stands in the note.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from monolith.cli._bench import ours, workload
from monolith.cli._bench.measurement import Measurement, Sense, median_ratio, tell
from monolith.cli._bench.timing import TimedStep, take_turns
from monolith.tables import row_optimizers as ro

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.cli._bench.setting import Setting

_NOT_AS_THEY_ARE: dict[type[ro.RowOptimizer], ro.RowOptimizer] = {
    ro.DynamicWdAdagrad: ro.DynamicWdAdagrad(weight_decay_factor=1e-4, decouple_weight_decay=True),
}
"""Rules whose defaults disable what is to be measured."""
OPTIMIZERS = tuple(_NOT_AS_THEY_ARE.get(rule) or rule() for rule in ro.every_rule() if rule is not ro.Sgd)
LIMITS = {"A": 3.0, "B": 1.5}


def measure(setting: Setting) -> list[Measurement]:
    """Workload B on the large table, where memory is the limit; A on the small one, where arithmetic counts."""
    ours.use_threads(setting.threads)
    return [
        *_measure_workload(setting, "B", setting.large_rows, workload.uniform_batches),
        *_measure_workload(setting, "A", setting.small_rows, workload.zipf_batches),
    ]


def _measure_workload(
    setting: Setting, name: str, num_rows: int, draw: Callable[[Setting, int], list[workload.WorkloadBatch]]
) -> list[Measurement]:
    batches = draw(setting, num_rows)
    sgd = {dim: _table(setting, ro.Sgd(), dim, num_rows) for dim in (ours.DIM, 1)}
    measurements = []
    for optimizer in OPTIMIZERS:
        tell(f"    {name}, {num_rows:,} rows, {type(optimizer).__name__}")
        # Batch softmax estimates one number per id.
        dim = 1 if isinstance(optimizer, ro.BatchSoftmax) else ours.DIM
        table = _table(setting, optimizer, dim, num_rows)
        contestants = {"ours": TimedStep(table.update, batches), "sgd": TimedStep(sgd[dim].update, batches)}
        rates = take_turns(contestants, rounds=setting.rounds, seconds=setting.seconds / 2)
        bytes_ratio = ours.row_bytes(table.table) / ours.row_bytes(sgd[dim].table)
        title = f"{type(optimizer).__name__}, {name}, {num_rows:,} rows"
        measurements.append(_compare(title, name, rates["ours"], rates["sgd"], bytes_ratio))
    return measurements


def _table(setting: Setting, optimizer: ro.RowOptimizer, dim: int, num_rows: int) -> ours.Ours:
    table = ours.new_table(optimizer, dim=dim)
    ours.fill(table, num_rows)
    gradient = workload.output_gradient(setting.ids_per_batch, ours.DIM)[:, :dim] * 1e-3
    return ours.Ours(table, gradient.contiguous())


def _compare(title: str, name: str, rates: list[float], sgd: list[float], bytes_ratio: float) -> Measurement:
    slowdown = median_ratio(sgd, rates)
    return Measurement(
        row="optimizers",
        measure=f"apply_gradients, {title}",
        figure=1e3 / statistics.median(rates),
        unit="ms",
        peer="Sgd",
        peer_figure=1e3 / statistics.median(sgd),
        ratio=slowdown / bytes_ratio,
        limit=LIMITS[name],
        sense=Sense.AT_MOST,
        note=f"ratio per byte of row: {slowdown:.2f} x the time of SGD for {bytes_ratio:.2f} x its row bytes",
    )
