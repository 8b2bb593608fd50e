"""The lifetime of a row in a hash table: it is trained, expires, and is restored from a snapshot.

    python examples/tables.py

Takes a second. Expected: the trained row is within 0.01 of its target, the expired row reads as zeros, and the restored
row equals the trained row bit for bit.
"""

from __future__ import annotations

import tempfile

import torch

import monolith as ml

USER, VISITOR = 2**62 + 7, -1  # ids are any int64; they need no numbering
JANUARY, MARCH = 1_767_225_600, 1_772_323_200  # 2026-01-01 and 2026-03-01 in Unix seconds
DAY = 86_400
TARGET = torch.tensor([0.5, -0.25, 0.125, 1.0])


def make_table() -> ml.HashTable:
    """Make a table with four weights per id, whose rows expire after 30 days without an update."""
    segment = ml.Segment(
        dim=4,
        initializer=ml.initializers.RandomUniform(-0.05, 0.05),
        optimizer=ml.row_optimizers.Adagrad(learning_rate=0.3, initial_accumulator_value=0.1),
    )
    return ml.HashTable(ml.TableConfig(segments=[segment], expire_days=30))


def train(table: ml.HashTable, ids: torch.Tensor, *, time: int, num_steps: int = 200) -> float:
    """Train the rows of ``ids`` towards the target; returns the largest remaining distance."""
    for step in range(num_steps):
        rows = table.lookup(ids).requires_grad_()
        loss = (rows - TARGET).square().sum()
        loss.backward()
        assert rows.grad is not None
        table.apply_gradients(ids, rows.grad, step=step, time=time)
    return float((table.lookup(ids) - TARGET).abs().max())


def show(title: str, row: torch.Tensor) -> None:
    """Print one row."""
    print(f"{title:<9}", " ".join(f"{weight:7.4f}" for weight in row.tolist()))


def main() -> None:
    """Train, expire, restore."""
    table = make_table()
    user, visitor = torch.tensor([USER]), torch.tensor([VISITOR])
    distance = train(table, visitor, time=JANUARY)
    trained = table.lookup(visitor)
    show("trained", trained[0])
    assert distance < 0.01

    with tempfile.TemporaryDirectory() as folder:
        table.save(folder)
        for day in range(JANUARY + DAY, MARCH + 1, DAY):  # the visitor does not return
            train(table, user, time=day, num_steps=5)
        show("expired", table.lookup(visitor)[0])
        assert (table.stats()["evicted"], len(table)) == (1, 1)
        assert not table.lookup(visitor).any()

        table.restore(folder)
        show("restored", table.lookup(visitor)[0])
        assert torch.equal(table.lookup(visitor), trained)


if __name__ == "__main__":
    main()
