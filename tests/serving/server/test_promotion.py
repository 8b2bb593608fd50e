"""Which version answers: labels, canary and rollback move while requests run, and outlive the server."""

from __future__ import annotations

import gc
import shutil
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from monolith.errors import FailedPreconditionError
from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.tensor_messages import MODEL_SERVICE, value_of
from serving.server.promoted_models import Versions, score, wait_until
from serving.server.promoted_server import ONE, SCORES, Served, publish
from serving.server.test_grpc import call, refused, request
from serving.server.test_rest import ask

COLUMNS = {"user": torch.tensor([100]), "x": torch.tensor([1.0])}


def test_the_newest_version_is_activated_and_the_one_before_is_freed(
    serve: Callable[..., Served], exports: Path, folder: Path
) -> None:
    served = serve()
    assert served.answer() == (2, SCORES[2])
    assert served.loaded() == [2]
    old = weakref.ref(served.registry.entries("ranker")[0].model)
    publish(exports, folder, 3)
    wait_until(lambda: served.loaded() == [3])
    assert served.answer() == (3, SCORES[3])
    wait_until(lambda: bool(gc.collect() or True) and old() is None)


def test_newest_versions_are_kept_side_by_side(serve: Callable[..., Served], exports: Path, folder: Path) -> None:
    served = serve(keep_versions=2)
    wait_until(lambda: served.loaded() == [1, 2])
    assert served.answer("/versions/1") == (1, SCORES[1])
    publish(exports, folder, 3)
    wait_until(lambda: served.loaded() == [2, 3])
    assert served.answer() == (3, SCORES[3])
    assert ask(served.server, "/v1/models/ranker/versions/1:predict", ONE).status == 404


def test_a_label_loads_its_version_and_keeps_it(serve: Callable[..., Served], exports: Path, folder: Path) -> None:
    served = serve()
    told = served.told("label", label="old", version=1)
    assert (told["answers"], told["labels"]) == (2, {"old": 1})
    publish(exports, folder, 3)
    wait_until(lambda: served.loaded() == [1, 3])
    assert served.answer("/labels/old") == (1, SCORES[1])
    assert served.answer() == (3, SCORES[3])
    served.told("label", label="old", version=None)
    assert served.loaded() == [3]
    assert served.tell("label", label="old", version=None).error.startswith("model 'ranker': there is no label 'old'")


@pytest.mark.slow
def test_labels_move_while_requests_run_and_none_fails(serve: Callable[..., Served]) -> None:
    served, stop = serve(), threading.Event()
    served.told("label", label="next", version=1)
    failures: list[Any] = []
    seen: set[tuple[str, int, float]] = set()

    def keep_asking(at: str) -> None:
        while not stop.is_set():
            try:
                version, found = served.answer(at)
                seen.add((at, version, round(found, 6)))
            except Exception as error:  # noqa: BLE001 - each is one too many
                failures.append(error)

    threads = [threading.Thread(target=keep_asking, args=(at,)) for at in ("", "/labels/next")]
    for thread in threads:
        thread.start()
    for version in (2, 1) * 4:
        served.told("label", label="next", version=version)
        served.told("label", label="stable", version=3 - version)
    wait_until(lambda: len(seen) == 4)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    expected = {1: round(score(1.0), 6), 2: round(score(2.0), 6)}
    assert seen == {(at, version, expected[version]) for at in ("", "/labels/next") for version in (1, 2)}


def test_a_canary_has_its_share_and_an_id_stays_on_its_side(serve: Callable[..., Served]) -> None:
    served = serve(server={"grpc_port": 0})
    served.told("canary", version=1, share=0.25)
    ids = [f"user-{number}" for number in range(40)]
    first = {each: served.answer(x_request_id=each) for each in ids}
    taken = [each for each, (version, _) in first.items() if version == 1]
    assert len(taken) == 7  # by the hash of these ids
    assert all(found == SCORES[version] for version, found in first.values())
    assert {each: served.answer(x_request_id=each) for each in ids} == first
    served.told("canary", version=1, share=0.5)
    wider = [each for each in ids if served.answer(x_request_id=each)[0] == 1]
    assert set(taken) < set(wider)
    # A request that names a version is not moved; gRPC divides as HTTP does.
    assert {served.answer("/versions/2", x_request_id=each)[0] for each in taken} == {2}
    with grpc.insecure_channel(f"127.0.0.1:{served.server.grpc_port}") as channel:
        asked = [call(channel, request(COLUMNS), metadata=[("x-request-id", each)]) for each in ids]
    assert [each.model_spec.version.value for each in asked] == [1 if each in wider else 2 for each in ids]
    found = [float(value_of(each.outputs["predictions"], name="predictions")[0]) for each in asked]
    assert found == [SCORES[each.model_spec.version.value] for each in asked]
    served.told("canary", version=1, share=1)
    assert served.answer() == (1, SCORES[1])
    assert served.told("canary", share=0)["canary"] is None
    assert served.loaded() == [2]
    assert served.answer(x_request_id=taken[0]) == (2, SCORES[2])


def test_requests_without_an_id_are_divided_by_chance(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    served.told("canary", version=1, share=0.3)
    drawn = iter([0.29, 0.31, 0.0, 0.99])
    monkeypatch.setattr("monolith.serving.server.registry.random.random", lambda: next(drawn))
    assert [served.answer()[0] for _ in range(4)] == [1, 2, 1, 2]


def test_a_canary_by_label_moves_with_it(serve: Callable[..., Served]) -> None:
    served = serve()
    served.told("label", label="trial", version=1)
    served.told("canary", label="trial", share=1.0)
    assert served.answer()[0] == 1
    refused = served.tell("label", label="trial", version=None)
    assert (refused.status, refused.error) == (
        412,
        "model 'ranker': the canary is label 'trial'; end it, or move it, first",
    )
    assert served.answer("/labels/trial")[0] == 1
    served.told("label", label="trial", version=2)
    assert served.answer()[0] == 2


def test_a_rollback_holds_until_another_command_and_over_a_restart(
    serve: Callable[..., Served], exports: Path, folder: Path, tmp_path: Path
) -> None:
    file = str(tmp_path / "promotion.json")
    served = serve(file=file)
    served.told("canary", version=2, share=0.5)
    told = served.told("rollback", version=1)
    assert (told["answers"], told["labels"], told["canary"]) == (1, {"stable": 1}, None)
    assert served.loaded() == [1]
    publish(exports, folder, 3)
    wait_until(lambda: served.status()["available"] == [1, 2, 3])
    assert served.answer() == (1, SCORES[1])
    served.close()
    again = serve(file=file)
    assert again.loaded() == [1]
    assert again.answer() == (1, SCORES[1])
    assert again.told("resume")["labels"] == {}
    wait_until(lambda: again.loaded() == [3])
    assert again.answer() == (3, SCORES[3])
    assert again.tell("resume").error.endswith("the newest one answers already")
    again.close()
    assert serve(file=file).answer() == (3, SCORES[3])


def test_canary_shadow_and_labels_are_restored_after_a_restart(serve: Callable[..., Served], tmp_path: Path) -> None:
    file = str(tmp_path / "promotion.json")
    served = serve(file=file)
    served.told("label", label="old", version=1)
    served.told("shadow", version=1)
    before = served.told("canary", label="old", share=0.5)
    served.close()
    after = serve(file=file).status()
    kept = ("labels", "canary", "shadow", "answers")
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}
    assert after["canary"] == {"label": "old", "share": 0.5}


def test_what_was_pinned_and_has_gone_does_not_hold_up_a_start_unless_it_answers(
    serve: Callable[..., Served], folder: Path, tmp_path: Path
) -> None:
    file = str(tmp_path / "promotion.json")
    served = serve(file=file)
    served.told("label", label="old", version=1)
    served.told("shadow", label="old")
    served.close()
    shutil.move(folder / "1", tmp_path / "1")
    again = serve(file=file)
    assert again.answer() == (2, SCORES[2])
    status = again.status()
    assert (status["labels"], status["shadow"]) == ({}, None)
    assert "there is no version 1" in status["refused"]["1"]
    again.close()
    shutil.move(tmp_path / "1", folder / "1")
    held = serve(file=file)
    held.told("rollback", version=1)
    held.close()
    shutil.rmtree(folder / "1")
    with pytest.raises(FailedPreconditionError, match="version 1 has the label 'stable', and cannot be served"):
        serve(file=file)


def test_one_export_has_one_version(serve: Callable[..., Served], folder: Path) -> None:
    served = serve(folder / "1")
    assert served.answer() == (1, SCORES[1])
    assert served.tell("rollback", version=2).status == 404
    assert served.told("label", label="only", version=1)["labels"] == {"only": 1}
    assert served.answer("/labels/only") == (1, SCORES[1])


def test_an_unusable_export_is_reported_in_the_status_and_skipped(
    serve: Callable[..., Served], exports: Path, folder: Path
) -> None:
    served = serve(server={"grpc_port": 0})
    shutil.copytree(exports / "3", folder / "x")
    (folder / "x" / "weights.safetensors").write_bytes(b"torn")
    (folder / "x").rename(folder / "3")
    wait_until(lambda: "3" in served.status()["refused"])
    assert served.answer() == (2, SCORES[2])
    told = ask(served.server, "/v1/models/ranker").body["model_version_status"]
    assert [(each["version"], each["state"], each["status"]["error_code"]) for each in told] == [
        ("2", "AVAILABLE", "OK"),
        ("3", "END", "FAILED_PRECONDITION"),
    ]
    assert "weights.safetensors" in told[1]["status"]["error_message"]
    with grpc.insecure_channel(f"127.0.0.1:{served.server.grpc_port}") as channel:
        spec = messages.ModelSpec(name="ranker")
        status = call(
            channel, messages.GetModelStatusRequest(model_spec=spec), "GetModelStatus", service=MODEL_SERVICE
        ).model_version_status
    assert [(each.version, each.state) for each in status] == [(2, 30), (3, 50)]
    assert "weights.safetensors" in status[1].status.error_message


def test_labels_are_resolved_over_grpc(serve: Callable[..., Served]) -> None:
    served = serve(server={"grpc_port": 0})
    with grpc.insecure_channel(f"127.0.0.1:{served.server.grpc_port}") as channel:
        code, sentence = refused(channel, request(COLUMNS, label="next"))
        assert (code, "there is no label 'next'" in sentence) == (grpc.StatusCode.NOT_FOUND, True)
        for version in (1, 2):
            served.told("label", label="next", version=version)
            answer = call(channel, request(COLUMNS, label="next"))
            assert answer.model_spec.version.value == version
            found = value_of(answer.outputs["predictions"], name="predictions")
            assert float(found[0]) == SCORES[version]
        served.told("rollback", version=1)
        assert call(channel, request(COLUMNS)).model_spec.version.value == 1


def test_weights_alone_share_the_rows_of_the_version_that_they_need(
    serve: Callable[..., Served], folder: Path, tmp_path: Path
) -> None:
    versions = Versions(tmp_path / "shared")
    versions.export(1, 1.0)
    versions.export(2, 2.0, dense_only=True)
    versions.set_rows(5.0)
    versions.export(3, 3.0)
    served = serve(tmp_path / "shared", keep_versions=3)
    wait_until(lambda: served.loaded() == [1, 2, 3])
    models: list[Any] = [entry.model for entry in served.registry.entries("ranker")]
    stores = [model._live.rows.stores["emb"] for model in models]
    assert stores[0] is stores[1]
    assert stores[1] is not stores[2]
    known = {"inputs": {"user": [3], "x": [1.0]}}
    found = [
        ask(served.server, f"/v1/models/ranker/versions/{number}:predict", known).body["outputs"][0]
        for number in (1, 2, 3)
    ]
    assert found == pytest.approx([score(1.0), score(2.0), score(3.0, row=5.0)])


@pytest.mark.usefixtures("nothing_left_behind")
def test_nothing_remains_after_close(folder: Path) -> None:
    served = Served(folder, keep_versions=2)
    served.told("canary", version=1, share=0.5)
    served.told("shadow", version=1)
    served.answer()
    served.close()
