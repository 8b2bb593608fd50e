"""Versions that harm the process that reads them, while a model answers: refused, and newer ones are taken up."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from export.forged_graphs import GRAPH, full, insert, node, reseal, tensor
from monolith.errors import CancelledError, DataLossError, FailedPreconditionError
from monolith.export import allowed_operations, trial
from monolith.export.export_folder import ExportFolder, HeldFolder
from monolith.files import seal
from monolith.serving import Predictor, allow_operations, export_versions, version_watch
from monolith.serving.promotion.promotion import ExportVersionSource
from serving.server.promoted_models import wait_until
from serving.small_models import make_batch, trained


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(trained(2).export(str(tmp_path_factory.mktemp("exported")), example=make_batch(0)))


def publish(exported: Path, folder: Path, version: int, *, pipe: str | None = None, forge: Any = None) -> None:
    """A version; one file of it, if it is named by a pattern, is a pipe that nobody writes to.

    `forge` makes operations that are put into its graph.
    """
    staged = folder / f"staged-{version}"
    shutil.copytree(exported, staged)
    manifest = json.loads((staged / "manifest.json").read_text())
    (staged / "manifest.json").write_bytes(seal({**manifest, "version": version}))
    if forge is not None:
        document = json.loads((staged / GRAPH).read_text())
        insert(document, forge(document))
        reseal(staged, document)
    if pipe is not None:
        place = next(staged.glob(pipe))
        place.unlink()
        os.mkfifo(place)
    staged.rename(folder / str(version))


def forged_csr(document: Any) -> list[Any]:
    """A sparse matrix whose rows begin far outside; making it dense crashes the process."""
    return [
        node("torch.ops.aten.full.default", "f", {"as_ints": [2]}, {"as_int": 1 << 30}, dtype={"as_scalar_type": 5}),
        node("torch.ops.aten.zeros.default", "z", {"as_ints": [1]}, dtype={"as_scalar_type": 5}),
        node("torch.ops.aten.cat.default", "crow", {"as_tensors": [{"name": "z"}, {"name": "f"}]}),
        node("torch.ops.aten.zeros.default", "col", {"as_ints": [2]}, dtype={"as_scalar_type": 5}),
        full("val", 2),
        node(
            "torch.ops.aten._sparse_csr_tensor_unsafe.default",
            "csr",
            tensor("crow"),
            tensor("col"),
            tensor("val"),
            {"as_ints": [2, 4]},
        ),
        node("torch.ops.aten.to_dense.default", "dense", tensor("csr")),
    ]


@pytest.mark.slow
def test_a_version_that_crashes_its_process_is_rejected_and_newer_ones_are_loaded(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(version_watch, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(allowed_operations, "_by_user", set())
    monkeypatch.delenv(trial.TRUST_VARIABLE)
    publish(exported, tmp_path, 1)
    with Predictor(str(tmp_path)) as predictor:
        allow_operations("aten._sparse_csr_tensor_unsafe", "aten.to_dense")
        publish(exported, tmp_path, 2, forge=forged_csr)
        wait_until(lambda: predictor.problem is not None)
        assert "the process that tried it was ended by signal SIGSEGV" in str(predictor.problem)
        assert predictor.version.export == 1
        assert predictor.predict(make_batch(3)).version.export == 1
        publish(exported, tmp_path, 3)
        wait_until(lambda: predictor.version.export == 3)
        assert predictor.problem is None


@pytest.mark.slow
def test_a_trial_that_does_not_end_is_ended(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(trial.TRUST_VARIABLE)
    held = HeldFolder.of(ExportFolder(str(exported)))
    with pytest.raises(CancelledError):
        trial.try_export(held, is_stopped=lambda: True)
    monkeypatch.setattr(trial, "TRIAL_SECONDS", 0.3)
    with pytest.raises(DataLossError, match=r"gave no answer within 0\.3 s"):
        trial.try_export(held)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"7", b"[" * 10_000, b'{"x": 1}', b"\xff", b'"' * 60_000])
def test_a_child_that_reports_anything_else_is_no_success(text: bytes) -> None:
    for code in (0, 1, -11, -9, -40):
        with pytest.raises(DataLossError, match="before it had an answer"):
            trial.require_success(code, text, b"", "export 'x'")


def test_the_last_line_of_a_child_without_a_verdict_is_reported_up_to_300_characters() -> None:
    with pytest.raises(DataLossError, match=r"it wrote: x{300}$"):
        trial.require_success(1, b"", b"first\n" + b"x" * 301, "export 'x'")


def test_at_the_start_a_server_falls_back_to_a_version_that_passes(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def judge(folder: HeldFolder, **_: Any) -> None:
        tried.append(Path(folder.path).name)
        if tried[-1] == "2":
            raise DataLossError("it crashed")

    monkeypatch.setattr(export_versions, "try_export", judge)
    publish(exported, tmp_path, 1)
    source = ExportVersionSource(str(tmp_path))
    source.open(1, frozen=False, others=[]).close()
    assert tried == ["1"]  # the only version is tried, too
    publish(exported, tmp_path, 2)
    with pytest.raises(DataLossError, match="it crashed"):
        source.open(2, frozen=False, others=[])
    source.open(1, frozen=False, others=[]).close()
    assert tried == ["1", "2", "1"]


@pytest.mark.slow
def test_pipes_in_the_place_of_files(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_watch, "POLL_SECONDS", 0.05)
    publish(exported, tmp_path, 1)
    with Predictor(str(tmp_path)) as predictor:
        pipes = ("weights.safetensors", "graph.*.json", "manifest.json", "rows/*/*.rows", "rows/*/manifest.json")
        for version, pipe in enumerate(pipes, start=2):
            publish(exported, tmp_path, version, pipe=pipe)
            wait_until(lambda: predictor.problem is not None)
            assert predictor.version.export == 1
            shutil.rmtree(tmp_path / str(version))
            wait_until(lambda: predictor.problem is None)
        publish(exported, tmp_path, 9)
        wait_until(lambda: predictor.version.export == 9)


def test_a_torch_that_cannot_export_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trained(1)
    monkeypatch.setattr(torch, "__version__", "2.4.1")
    with pytest.raises(FailedPreconditionError, match=r"torch 2\.4\.1 .* install a newer torch"):
        trainer.export(str(tmp_path), example=make_batch(0))
