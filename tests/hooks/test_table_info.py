"""Sizes of tables in the log."""

from __future__ import annotations

import logging

import pytest
import torch

import monolith as ml
from hooks.sessions import FakeSession
from monolith.checkpoint import TrainState
from monolith.hooks import SyncTrainingInfoHook
from monolith.hooks.tables import describe_tables
from monolith.testing import FakeClock


def test_every_ten_minutes_the_rows_of_each_table(caplog: pytest.LogCaptureFixture) -> None:
    embeddings = ml.Embeddings({"user": ml.Slot(dim=4), "item": ml.Slot(dim=8)})
    output = embeddings({"user": torch.arange(7), "item": torch.arange(7) % 3})
    torch.autograd.backward(torch.cat([output["user"], output["item"]], 1).sum())
    embeddings.step()
    state = TrainState(model=torch.nn.ModuleDict({"emb": embeddings}))
    session, clock = FakeSession(global_step=3, state=state), FakeClock()
    hook = SyncTrainingInfoHook(clock=clock)
    hook.after_create_session(session)
    with caplog.at_level(logging.INFO):
        for _ in range(12):
            hook.after_run(session.context())
            clock.advance(100)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0].startswith("tables at step 3: 10 rows in ")
    sizes = sorted(int(part.split()[-1]) for part in lines[0].split(": ")[2].split(", "))
    assert sizes == [3, 7]


def test_a_session_without_tables_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    hook = SyncTrainingInfoHook(clock=FakeClock())
    with caplog.at_level(logging.INFO):
        hook.after_run(FakeSession().context())
    assert "0 rows in 0.0 MiB: no table" in caplog.text


def test_times_that_lay_far_ahead_are_reported() -> None:
    table = ml.HashTable(ml.TableConfig([ml.Segment(1)], name="user"))
    table.assign([1], [[1.0]], time=1_700_000_000)
    assert describe_tables({"": table.store}).endswith(": user 1")
    table.assign([1], [[1.0]], time=4_102_444_800)
    assert describe_tables({"": table.store}).endswith(": user 1; 1 times lay far ahead")
