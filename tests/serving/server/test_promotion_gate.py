"""The gate: an export or dense weights that are worse are not served; what was served before answers on."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from failing_once import FailingOnce
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.serving import Predictor, version_watch
from monolith.serving.loaded_model import DenseGate
from monolith.serving.promotion import Promotion, PromotionConfig, PromotionGate
from monolith.serving.server import ModelRegistry
from serving.server.promoted_models import Versions, batch, score, wait_until, write_gate

ALL_WRONG, ALL_RIGHT = -1.0, 1.0


class Gated:
    """A model that is served behind a gate, without a server."""

    def __init__(self, path: Path, gate: Path, *, follow: Path | None = None, **options: Any) -> None:
        self.registry = ModelRegistry()
        self.promotion = Promotion(self.registry, PromotionConfig(**options))
        try:
            log = None if follow is None else str(follow)
            self.promotion.add(str(path), name="ranker", follow=log, gate=PromotionGate.from_file(str(gate)))
        except BaseException:
            self.close()
            raise

    def status(self) -> Any:
        return self.promotion.describe("ranker")["models"]["ranker"]

    def answer(self, version: int | None = None, user: int = 100) -> Any:
        with self.registry.using("ranker", version=version) as entry:
            found = entry.model.predict({"user": [user], "x": [1.0]})
        return found.version.export, found.version.dense, float(found.outputs["predictions"][0])

    def close(self) -> None:
        self.promotion.close()
        self.registry.close()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Gated]]:
    monkeypatch.setattr(version_watch, "POLL_SECONDS", 0.02)
    made: list[Gated] = []

    def start(*arguments: Any, **options: Any) -> Gated:
        made.append(Gated(*arguments, **options))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions(tmp_path / "model")


def test_bad_exports_are_refused_with_their_figures_and_the_next_good_one_is_taken(
    serve: Callable[..., Gated], versions: Versions, tmp_path: Path
) -> None:
    gate = write_gate(tmp_path / "gate.json", min_auc=0.9, max_calibration=1.2)
    versions.export(1, ALL_RIGHT)
    served = serve(versions.folder, gate)
    versions.export(2, math.nan)
    wait_until(lambda: "2" in served.status()["refused"])
    assert served.status()["refused"]["2"] == (
        "model 'ranker': version 2 did not pass the gate: 8 outputs that are NaN or infinite, in 8 examples"
    )
    versions.export(3, ALL_WRONG)
    wait_until(lambda: "3" in served.status()["refused"])
    assert "AUC 0 is below 0.9 (AUC 0, calibration 1, 8 examples)" in served.status()["refused"]["3"]
    versions.set_rows(3.0)
    versions.export(4, ALL_RIGHT)
    wait_until(lambda: "4" in served.status()["refused"])
    assert "is above 1.2 (AUC 1, calibration 1." in served.status()["refused"]["4"]
    assert served.answer()[0] == 1
    verdict = served.status()["gate"]["export"]
    assert (verdict["auc"], verdict["examples"], "calibration" in verdict["refused"]) == (1.0, 8, True)
    versions.set_rows(0.0)
    versions.export(5, 2.0)
    wait_until(lambda: served.answer()[0] == 5)
    assert served.answer() == (5, -1, pytest.approx(score(2.0)))
    assert served.status()["gate"]["export"]["refused"] is None


def test_a_fall_against_what_is_served_is_refused(
    serve: Callable[..., Gated], versions: Versions, tmp_path: Path
) -> None:
    gate = write_gate(tmp_path / "gate.json", max_auc_fall=0.1)
    versions.export(1, ALL_WRONG)
    served = serve(versions.folder, gate)  # there is nothing that it could fall below
    versions.export(2, ALL_RIGHT)
    wait_until(lambda: served.answer()[0] == 2)
    versions.export(3, ALL_WRONG)
    wait_until(lambda: "3" in served.status()["refused"])
    assert "AUC 0 is more than 0.1 below the 1 of what is served" in served.status()["refused"]["3"]


def test_at_the_start_the_newest_that_passes_answers_and_without_any_there_is_none(
    serve: Callable[..., Gated], versions: Versions, tmp_path: Path
) -> None:
    gate = write_gate(tmp_path / "gate.json", min_auc=0.9)
    versions.export(1, ALL_WRONG)
    with pytest.raises(FailedPreconditionError, match=r"version 1 did not pass the gate: AUC 0 is below 0\.9"):
        serve(versions.folder, gate)
    versions.export(2, ALL_RIGHT)
    versions.export(3, math.nan)
    served = serve(versions.folder, gate)
    assert served.answer()[0] == 2
    assert list(served.status()["refused"]) == ["3"]


def test_what_is_commanded_must_pass_unless_it_is_forced_or_only_a_shadow(
    serve: Callable[..., Gated], versions: Versions, tmp_path: Path
) -> None:
    gate = write_gate(tmp_path / "gate.json", min_auc=0.9)
    versions.export(1, ALL_WRONG)
    versions.export(2, ALL_RIGHT)
    served = serve(versions.folder, gate)
    command = served.promotion.command
    assert command("ranker", "shadow", {"version": 1})["shadow"] == {"version": 1}
    for verb, fields in (
        ("label", {"label": "old", "version": 1}),
        ("canary", {"version": 1, "share": 0.5}),
        ("rollback", {"version": 1}),
    ):
        with pytest.raises(FailedPreconditionError, match="version 1 did not pass the gate"):
            command("ranker", verb, fields)
    status = served.status()
    assert (status["answers"], status["labels"], status["canary"]) == (2, {}, None)
    assert command("ranker", "rollback", {"version": 1, "force": True})["answers"] == 1
    assert served.answer()[0] == 1
    # Told to go on, it judges anew, and 2 passes.
    command("ranker", "resume", {})
    wait_until(lambda: served.answer()[0] == 2)


def answers(served: Gated, wanted: Any) -> bool:
    return bool(served.answer(user=3) == wanted)


def has_problem(served: Gated, said: str) -> bool:
    return said in str(served.status()["versions"][0]["problem"])


def test_weights_that_could_not_be_judged_are_a_problem_until_the_next_ones_are() -> None:
    judge = FailingOnce(lambda *_, **__: SimpleNamespace(refused=None), thread="monolith-gate")
    live: Any = SimpleNamespace(current=({}, -1), model=None)
    gate: Any = SimpleNamespace(judge=judge)
    with closing(DenseGate(live, gate)) as dense:
        dense.offer(({}, 1))
        wait_until(lambda: dense.problem is not None)
        assert dense.problem == f"the newest dense weights of the delta log could not be judged: {judge.error!r}"
        assert live.current == ({}, -1)
        assert dense.awaits_first
        dense.offer(({}, 2))
        judge.require_survived()
        wait_until(lambda: not dense.awaits_first)
        assert live.current == ({}, 2)
        assert [dense.problem] == [None]


def test_dense_weights_of_the_log_wait_for_the_gate_while_rows_continue(
    serve: Callable[..., Gated], versions: Versions, tmp_path: Path
) -> None:
    gate = write_gate(tmp_path / "gate.json", min_auc=0.9)
    versions.export(1, ALL_RIGHT)
    publisher = versions.publisher(tmp_path / "log")
    versions.set_slope(2.0)
    publisher.publish()
    served = serve(versions.folder, gate, follow=tmp_path / "log")
    wait_until(lambda: served.answer() == (1, served.answer()[1], pytest.approx(score(2.0))))
    good = served.answer()[1]
    assert good >= 0
    for slope, row, said in ((math.nan, 0.5, "NaN or infinite"), (ALL_WRONG, 0.75, "AUC 0 is below 0.9")):
        versions.set_slope(slope)
        versions.set_rows(row)
        publisher.publish()
        with_row = (1, good, pytest.approx(score(2.0, row=row)))
        wait_until(partial(answers, served, with_row))
        wait_until(partial(has_problem, served, said))
    assert f"those of increment {good} are served" in served.status()["versions"][0]["problem"]
    assert served.status()["gate"]["dense"]["refused"] is not None
    assert served.status()["versions"][0]["ready"]
    versions.set_slope(3.0)
    publisher.publish()
    wait_until(lambda: served.answer()[1] > good)
    assert served.answer(user=3)[2] == pytest.approx(score(3.0, row=0.75))
    assert served.status()["versions"][0]["problem"] is None
    publisher.close()


def test_a_rollback_of_a_model_that_follows_is_as_it_was_exported(
    serve: Callable[..., Gated], versions: Versions, tmp_path: Path
) -> None:
    gate = write_gate(tmp_path / "gate.json")
    file = str(tmp_path / "promotion.json")
    versions.export(1, 1.0)
    publisher = versions.publisher(tmp_path / "log")
    versions.set_slope(4.0)
    versions.set_rows(0.5)
    publisher.publish()
    served = serve(versions.folder, gate, follow=tmp_path / "log", file=file)
    followed = pytest.approx(score(4.0, row=0.5))
    wait_until(lambda: served.answer(user=3)[2] == followed)
    told = served.promotion.command("ranker", "rollback", {"version": 1})
    assert (told["versions"][0]["as_exported"], told["versions"][0]["follows"]) == (True, False)
    assert served.answer(user=3) == (1, -1, pytest.approx(score(1.0)))
    served.close()
    again = serve(versions.folder, gate, follow=tmp_path / "log", file=file)
    assert again.answer(user=3) == (1, -1, pytest.approx(score(1.0)))
    again.promotion.command("ranker", "rollback", {"version": 1, "follow": True})
    wait_until(lambda: again.answer(user=3)[2] == followed)
    again.promotion.command("ranker", "rollback", {"version": 1})
    assert again.answer(user=3)[2] == pytest.approx(score(1.0))
    again.promotion.command("ranker", "resume", {})
    wait_until(lambda: again.answer(user=3)[2] == followed)
    publisher.close()


def test_a_predictor_alone_keeps_the_gate(versions: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_watch, "POLL_SECONDS", 0.02)
    gate = PromotionGate.from_file(str(write_gate(tmp_path / "gate.json", min_auc=0.9)))
    versions.export(1, ALL_RIGHT)
    with Predictor(str(versions.folder), gate=gate) as predictor:
        versions.export(2, ALL_WRONG)
        wait_until(lambda: predictor.problem is not None)
        assert "version 2 did not pass the gate: AUC 0 is below 0.9" in str(predictor.problem)
        assert predictor.version.export == 1
        versions.export(3, 2.0)
        wait_until(lambda: predictor.version.export == 3)
        assert predictor.problem is None


@pytest.mark.parametrize("is_promoted", [True, False], ids=["promoted", "alone"])
@pytest.mark.parametrize("dense_only", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_newer_export_answers_with_weights_of_the_log_from_its_first_answer_on(
    serve: Callable[..., Gated],
    versions: Versions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_promoted: bool,
    dense_only: bool,
) -> None:
    gate = write_gate(tmp_path / "gate.json", min_auc=0.9)
    versions.export(1, ALL_RIGHT)
    publisher = versions.publisher(tmp_path / "log")
    versions.set_slope(2.0)
    publisher.publish()
    with ExitStack() as stack:
        predict: Callable[..., Any]
        if is_promoted:
            served = serve(versions.folder, gate, follow=tmp_path / "log")
            predict = partial(asked, served.registry)
        else:
            alone = Predictor(
                str(versions.folder), follow=str(tmp_path / "log"), gate=PromotionGate.from_file(str(gate))
            )
            predict = stack.enter_context(alone).predict
        inputs = {"user": [100], "x": [1.0]}
        wait_until(lambda: predict(inputs).version.dense >= 0)
        judging, judge, pause = threading.Event(), PromotionGate.judge, threading.Event()

        def slow(gate: PromotionGate, model: Any, *, kind: str, against: Any) -> Any:
            if kind == "dense":
                judging.set()
                pause.wait(0.3)  # in which a version that did not wait would be seen
            return judge(gate, model, kind=kind, against=against)

        monkeypatch.setattr(PromotionGate, "judge", slow)
        versions.export(2, 3.0, dense_only=dense_only)
        seen = [predict(inputs).version]
        while seen[-1].export == 1 or not judging.is_set():
            seen.append(predict(inputs).version)
    assert min(version.dense for version in seen) >= 0
    publisher.close()


def asked(registry: ModelRegistry, inputs: Any) -> Any:
    with registry.using("ranker") as entry:
        return entry.model.predict(inputs)


def test_examples_that_do_not_fit_a_version_keep_it_out(
    serve: Callable[..., Gated], versions: Versions, tmp_path: Path
) -> None:
    versions.export(1, ALL_RIGHT)
    for fields, said in (
        ({"signature": "other"}, "it has no signature 'other', which the gate calls"),
        ({"output": "score"}, "there is no output 'score'; outputs are: predictions"),
    ):
        with pytest.raises(FailedPreconditionError, match=said):
            serve(versions.folder, write_gate(tmp_path / "gate.json", **fields))
    (tmp_path / "examples.jsonl").write_text('{"user": 1, "label": 1}\n')
    (tmp_path / "gate.json").write_text('{"examples": "examples.jsonl"}')
    with pytest.raises(FailedPreconditionError, match="cannot be scored: input 'x' is missing"):
        serve(versions.folder, tmp_path / "gate.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "option 'examples' is required"),
        ("examples = 3", "examples must be a text, got 3"),
        ('examples = "none.jsonl"', "none.jsonl"),
        ('examples = "rows"\nmin_uac = 1', "unknown option 'min_uac'; did you mean 'min_auc'"),
        ('examples = "rows"\nmin_auc = 1.5', "min_auc must be from 0 to 1, got 1.5"),
        ('examples = "rows"\nmin_auc = true', "min_auc must be from 0 to 1, got True"),
        ('examples = "rows"\nmin_auc = nan', "min_auc must be from 0 to 1, got nan"),
        ('examples = "rows"\nmax_calibration = inf', "max_calibration must be >= 0, got inf"),
        ('examples = "rows"\nmin_calibration = 2\nmax_calibration = 1', "min_calibration 2 is above max_calibration 1"),
        ('examples = "rows"\nlabel = "click"', "line 1: must be a JSON object with the label under 'click'"),
        ('examples = "rows"\nmin_auc = 0.5', "all labels are 1, but the gate checks AUC or calibration"),
        ('examples = "half"', "line 1: the label 'label' must be 0 or 1, got 0.5"),
        ('examples = "torn"', "line 2: must be a JSON object"),
        ('examples = "empty"', "must have from 1 to 100000 examples, got 0"),
        ("examples = ", "Invalid"),
    ],
)
def test_a_wrong_gate_is_refused_with_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "rows").write_text('{"user": 1, "x": 1, "label": 1}\n')
    (tmp_path / "half").write_text('{"label": 0.5}\n')
    (tmp_path / "torn").write_text('{"label": 1}\n{"label"')
    (tmp_path / "empty").write_text("\n")
    gate = tmp_path / "gate.toml"
    gate.write_text(text)
    with pytest.raises((InvalidArgumentError, NotFoundError)) as caught:
        PromotionGate.from_file(str(gate))
    assert said in caught.value.message


def test_figures_are_those_of_the_metrics(versions: Versions, tmp_path: Path) -> None:
    versions.export(1, 0.5)
    gate = PromotionGate.from_file(str(write_gate(tmp_path / "gate.json")))
    with Predictor(str(versions.folder)) as predictor:
        verdict = gate.judge(predictor, kind="export")
    columns: Any = batch()
    expected = sum(score(0.5, x=x) for x in columns["x"].tolist()) / float(columns["label"].sum())
    assert verdict.figures.auc == 1.0
    assert verdict.figures.calibration == pytest.approx(expected)
    assert json.dumps(verdict.figures.to_json())
