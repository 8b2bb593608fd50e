"""A table on one screen: a row is trained, expires, and comes back from a snapshot.

    python examples/tables.py

Takes a second. Expected: the trained row is within 0.01 of its target, the expired one reads zeros, the restored one
equals the trained one bit for bit.
"""

from __future__ import annotations

import tempfile

import torch

import monolith as ml

USER, VISITOR = 2**62 + 7, -1  # ids are any int64; nobody numbers them
JANUARY, MARCH = 1_767_225_600, 1_772_323_200  # Unix times of two first days of a month, 2026
DAY = 86_400
TARGET = torch.tensor([0.5, -0.25, 0.125, 1.0])


def make_table() -> ml.HashTable:
    """A table of four weights per id, forgotten after 30 days without an update."""
    segment = ml.Segment(
        dim=4,
        initializer=ml.initializers.RandomUniform(-0.05, 0.05),
        optimizer=ml.row_optimizers.Adagrad(learning_rate=0.3, initial_accumulator_value=0.1),
    )
    return ml.HashTable(ml.TableConfig(segments=[segment], expire_days=30))


def train(table: ml.HashTable, ids: torch.Tensor, *, time: int, num_steps: int = 200) -> float:
    """Move the rows of ``ids`` towards the target and return the largest distance that is left."""
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
        for day in range(JANUARY + DAY, MARCH + 1, DAY):  # the visitor does not come again
            train(table, user, time=day, num_steps=5)
        show("expired", table.lookup(visitor)[0])
        assert (table.stats()["evicted"], len(table)) == (1, 1)
        assert not table.lookup(visitor).any()

        table.restore(folder)
        show("restored", table.lookup(visitor)[0])
        assert torch.equal(table.lookup(visitor), trained)


if __name__ == "__main__":
    main()
