"""The figures of a validation: windows of event time, what comes out, and how it is drawn; ids that share rows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor

from monolith.data import Batch
from monolith.errors import InvalidArgumentError
from monolith.tensors import Ragged
from monolith.validation import CopyOutcome, HashedIds, Scores, SyncRule, ValidationOutcome, Window, write_page
from monolith.validation.outcome import WindowedScores, page_of, table_of

HOUR, DAY = 3600, 86_400
BEGIN = 1_700_000_000


def test_scores_are_those_of_scikit_learn_window_by_window() -> None:
    draw = np.random.default_rng(1)
    times = np.sort(draw.integers(0, 5 * HOUR, 4000))
    labels = draw.integers(0, 2, 4000).astype(np.float32)
    predictions = np.clip(draw.random(4000) * 0.6 + 0.3 * labels, 0.01, 0.99).astype(np.float32)
    scores = WindowedScores(begin=BEGIN, seconds=HOUR, disorder_seconds=60)
    for part in np.array_split(np.arange(4000), 37):
        shuffled = draw.permutation(part)
        scores.add(
            torch.from_numpy(BEGIN + times[shuffled]),
            torch.from_numpy(predictions[shuffled]),
            torch.from_numpy(labels[shuffled]),
        )
    total = scores.close()
    assert [window.begin for window in scores.windows] == [BEGIN + number * HOUR for number in range(5)]
    for number, window in enumerate(scores.windows):
        inside = times // HOUR == number
        assert window.examples == inside.sum()
        assert window.auc == pytest.approx(roc_auc_score(labels[inside], predictions[inside]), abs=1e-9)
        assert window.log_loss == pytest.approx(log_loss(labels[inside], predictions[inside].astype(float)), abs=1e-6)
        assert window.calibration == pytest.approx(predictions[inside].sum() / labels[inside].sum(), rel=1e-5)
    assert total.examples == 4000
    assert total.auc == pytest.approx(roc_auc_score(labels, predictions), abs=1e-5)
    assert total.log_loss == pytest.approx(log_loss(labels, predictions.astype(float)), abs=1e-6)
    assert total.calibration == pytest.approx(predictions.sum() / labels.sum(), rel=1e-5)


def ones(*values: float) -> Tensor:
    return torch.tensor(values)


def test_a_late_example_counts_in_its_window_while_that_is_open() -> None:
    scores = WindowedScores(begin=0, seconds=100, disorder_seconds=50)
    for times in ([10], [140], [30], [170], [20], [430]):  # 20 comes when the first window is closed
        scores.add(torch.tensor(times), ones(0.5), ones(1.0))
    assert [(window.begin, window.examples) for window in scores.windows] == [(0, 2), (100, 3)]
    scores.close()
    assert [(window.begin, window.examples) for window in scores.windows] == [(0, 2), (100, 3), (400, 1)]
    assert math.isnan(scores.windows[0].auc)


# Hashed ids


def test_hashed_ids_are_spread_over_their_rows_and_differ_by_column() -> None:
    ids = torch.arange(10_000)
    tags = Ragged.from_lists([[7], [8, 9]] * 5000)
    batch = Batch({"user": ids, "item": ids, "tags": tags, "label": ids.float()})
    hashed = HashedIds(columns=["user", "item", "tags"], rows=64)(batch)
    user, item, other = hashed["user"], hashed["item"], hashed["tags"]
    assert isinstance(user, Tensor)
    assert isinstance(item, Tensor)
    assert isinstance(other, Ragged)
    for column in (user, item):
        counts = torch.bincount(column, minlength=64)
        assert len(counts) == 64
        assert 100 < counts.min() < counts.max() < 220
    assert (user == item).float().mean() < 0.05
    assert len(set(other.flat_values.tolist())) == 3
    assert torch.equal(other.row_splits, tags.row_splits)
    assert hashed["label"] is batch["label"]


def test_ids_that_differ_in_their_top_10_bits_alone_share_a_hashed_id() -> None:
    ids = torch.tensor([7, 7 + (1 << 54), 7 - (1 << 63), 7 + (1 << 53)])
    hashed = HashedIds(columns=["user"], rows=1 << 40)(Batch({"user": ids}))["user"]
    assert isinstance(hashed, Tensor)
    assert hashed[0] == hashed[1] == hashed[2] != hashed[3]


def test_what_cannot_be_hashed_is_named() -> None:
    batch = Batch({"user": torch.arange(3), "label": torch.zeros(3)})
    with pytest.raises(InvalidArgumentError, match="no column 'item', only 'user', 'label'"):
        HashedIds(columns=["item"], rows=3)(batch)
    with pytest.raises(InvalidArgumentError, match=r"column 'label' must hold ids, int64, got torch\.float32"):
        HashedIds(columns=["label"], rows=3)(batch)
    with pytest.raises(ValueError, match="rows must be >= 1, got 0"):
        HashedIds(columns=["user"], rows=0)


# What comes out


def outcome_of(name: str, *aucs: float) -> dict[str, CopyOutcome]:
    windows = tuple(
        Window(begin=BEGIN + n * DAY, end=BEGIN + n * DAY + DAY, examples=5, auc=auc, log_loss=0.5, calibration=1.0)
        for n, auc in enumerate(aucs)
    )
    total = Scores(examples=5 * len(aucs), auc=0.75, log_loss=0.5, calibration=1.0)
    rule = SyncRule(rows_seconds=math.inf)
    return {name: CopyOutcome(rule=rule, windows=windows, total=total, num_takes=1, bytes_taken=2_000_000)}


def test_an_outcome_is_a_mapping_a_table_and_plain_values() -> None:
    copies = outcome_of("never", 0.7, math.nan, 0.8)
    outcome = ValidationOutcome(copies=copies, examples=30, rows=4, memory_bytes=100, evicted=0)
    assert outcome["never"].mean_auc == pytest.approx(0.75)
    assert list(outcome) == ["never"]
    assert str(outcome) == table_of(copies)
    assert str(outcome).splitlines()[1].split() == ["never", "0.7500", "0.7500", "0.5000", "1.000", "1", "2.0"]
    plain = json.loads(json.dumps(outcome.to_dict(), allow_nan=False))
    assert plain["copies"]["never"]["rule"]["rows_seconds"] == "infinite"
    assert [window["auc"] for window in plain["copies"]["never"]["windows"]] == [0.7, None, 0.8]


def test_a_value_that_is_unknown_is_a_dash_in_the_page() -> None:
    assert "<td>-</td>" in page_of(outcome_of("x", 0.7, math.nan), title="x")


def test_the_page_draws_every_copy_and_loads_nothing(tmp_path: Path) -> None:
    many = {f"<{number}>": outcome_of("x", 0.7, 0.7 + number / 100)["x"] for number in range(9)}
    write_page(tmp_path / "page.html", many, title="fresh & stale")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text == page_of(many, title="fresh & stale")
    body = text.partition("<body>")[2].partition("</body>")[0]
    page = ET.fromstring(f"<body>{body}</body>")  # noqa: S314 - our own page
    drawings = list(page.iter("svg"))
    assert [sum(line.tag == "polyline" for line in drawing) for drawing in drawings] == [9] * 6
    total, windows = ([[cell.text for cell in row] for row in table.iter("tr")] for table in page.iter("table"))
    assert total[1:3] == [
        ["<0>", "0.7000", "0.7500", "0.5000", "1.0000", "10", "1", "2.0"],
        ["<1>", "0.7050", "0.7500", "0.5000", "1.0000", "10", "1", "2.0"],
    ]
    assert (len(total), len(windows)) == (1 + 9, 1 + 2 * 9)
    assert windows[4] == ["<1>", str(BEGIN + DAY), "5", "0.7100", "0.5000", "1.0000"]
    assert "&lt;8&gt;" in text
    assert "<title>fresh &amp; stale</title>" in text
    assert not any(word in text for word in ("http", "src=", "@import", "url("))
