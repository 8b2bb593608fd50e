"""``monolith checkpoint``: looks at checkpoints without a model."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from checkpoint.runs import Run, contents
from monolith.checkpoint import Saver, get_nas_weight_json
from monolith.checkpoint.state_dicts import model_state
from monolith.checkpoint.state_files import MONOLITH_CHECKPOINT
from monolith.cli import main
from monolith.errors import NotFoundError


@pytest.fixture
def run() -> Run:
    return Run(min_count=2)


@pytest.fixture
def model_dir(tmp_path: Path, run: Run) -> Path:
    folder = tmp_path / "model"
    with Saver(folder) as saver:
        for _ in range(2):
            run.steps(3)
            saver.save(run.state)
    return folder


def call(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    assert main(["checkpoint", *map(str, arguments)]) == status
    return capsys.readouterr().out


def test_list(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model_dir / MONOLITH_CHECKPOINT).write_text('exempt_model_checkpoint_paths: "model.ckpt-3"\n')
    lines = call(capsys, "list", model_dir).splitlines()
    assert [line.split()[0] for line in lines] == ["step", "3", "6"]
    assert lines[1].endswith("exempt")
    assert lines[2].endswith("latest")
    listed = json.loads(call(capsys, "list", model_dir, "--json"))
    assert [(each["step"], each["latest"], each["exempt"]) for each in listed] == [(3, False, True), (6, True, False)]
    assert listed[1]["rows"] > 0


def test_list_of_a_directory_without_any(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "list", tmp_path) == "no checkpoints\n"
    assert call(capsys, "list", tmp_path, "--json") == "[]\n"


@pytest.mark.parametrize("what", ["missing", "file", "memory"])
def test_list_of_what_is_no_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    path = "memory://nowhere/m" if what == "memory" else tmp_path / what
    (tmp_path / "file").touch()
    assert main(["checkpoint", "list", str(path)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"monolith checkpoint: error: '{path}': there is no such directory" in shown.err


def test_show(model_dir: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    text = call(capsys, "show", model_dir)
    assert "step: 6\n" in text
    assert re.search(r"^created: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", text, re.MULTILINE)
    assert "  tower.0.weight  float32 [6, 8]\n" in text
    shown = json.loads(call(capsys, "show", model_dir / "model.ckpt-3", "--json"))
    assert (shown["step"], shown["positions"], shown["optimizers"]) == (3, {"worker 0": "3"}, ["adam"])
    shown = json.loads(call(capsys, "show", model_dir, "--json"))
    assert sum(shown["tables"]["emb"].values()) == run.model.emb.num_rows


@pytest.mark.parametrize("file", ["*.safetensors", "*.meta", "*.assets/emb/*.rows", "*.assets/emb/manifest.json"])
def test_verify(model_dir: Path, capsys: pytest.CaptureFixture[str], file: str) -> None:
    assert "all as written" in call(capsys, "verify", model_dir)
    path = next(iter(sorted(model_dir.glob(f"model.ckpt-6{file[1:]}"))))
    whole = path.read_bytes()
    for offset in {0, 40, len(whole) // 2, len(whole) - 1}:
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 4]) + whole[offset + 1 :])
        assert main(["checkpoint", "verify", str(model_dir)]) == 1
        error = capsys.readouterr().err
        assert error.startswith("monolith checkpoint: error: ")
        assert error.count("\n") == 1
    path.write_bytes(whole)
    assert json.loads(call(capsys, "verify", model_dir, "--json"))["ok"] is True


def test_diff(model_dir: Path, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "diff", model_dir, model_dir) == "equal\n"
    found = json.loads(call(capsys, "diff", model_dir / "model.ckpt-3", model_dir, "--json", status=1))
    assert found["step"] == [3, 6]
    assert found["positions"] == {"worker 0": ["3", "6"]}
    assert "differs by up to" in found["tensors"]["tower.0.weight"]
    ((_, counts),) = found["tables"].items()
    assert counts["only_first"] == 0
    assert counts["only_second"] > 0
    assert counts["changed"] > 0
    with torch.no_grad():
        run.model.tower.get_parameter("0.weight")[0, 0] += 0.5
    with Saver(tmp_path / "other") as saver:
        saver.save(run.state)
    text = call(capsys, "diff", model_dir, tmp_path / "other", status=1)
    assert "tower.0.weight: differs by up to 0.5" in text
    assert "tables" not in text


@pytest.mark.parametrize("command", ["export", "reshard"])
def test_a_name_that_no_folder_can_have_is_not_a_failing_disk(
    model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main(["checkpoint", command, str(model_dir), str(tmp_path / ("a" * 300))]) == 1
    assert "File name too long" in capsys.readouterr().err


def test_export(model_dir: Path, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = call(capsys, "export", model_dir, tmp_path / "out")
    weights = safetensors.torch.load_file(tmp_path / "out" / "weights.safetensors")
    expected = {name: value for name, value in model_state(run.model).items() if isinstance(value, torch.Tensor)}
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)
    (table,) = [line for line in text.splitlines() if "emb." in line]
    rows = safetensors.torch.load_file(table)
    names = zip(rows["slots"].tolist(), rows["ids"].tolist(), strict=True)
    saved = dict(zip(names, rows["weights"].tolist(), strict=True))
    emb = run.model.emb
    found = {place.number: emb.vectors(name) for name, place in emb.placed.items()}
    assert saved == {
        (number, each): row
        for number, (ids, vectors) in found.items()
        for each, row in zip(ids.tolist(), vectors.tolist(), strict=True)
    }
    assert rows["times"].min() >= 1_700_000_000
    assert main(["checkpoint", "export", str(model_dir), str(tmp_path / "out")]) == 1
    assert "needs an empty or new folder" in capsys.readouterr().err


@pytest.mark.parametrize("files", [1, 5, 40])
def test_reshard(model_dir: Path, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], files: int) -> None:
    target = tmp_path / "resharded"
    assert call(capsys, "reshard", model_dir, target, "--files", files) == f"{target}/model.ckpt-6\n"
    assert len(list((target / "model.ckpt-6.assets" / "emb").glob("*.rows"))) == files
    assert call(capsys, "diff", model_dir, target) == "equal\n"
    again = Run(seed=3, min_count=2)
    Saver(target).restore(again.state)
    assert contents(again) == contents(run)
    assert again.steps(3) == _continued(model_dir)
    assert main(["checkpoint", "reshard", str(model_dir), str(target)]) == 1
    assert "there is a checkpoint already" in capsys.readouterr().err


def _continued(model_dir: Path) -> list[float]:
    run = Run(seed=8, min_count=2)
    Saver(model_dir).restore(run.state)
    return run.steps(3)


def test_a_path_without_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "show", str(tmp_path)]) == 1
    assert "neither a checkpoint" in capsys.readouterr().err


def test_architecture_weights_of_a_checkpoint(model_dir: Path, run: Run) -> None:
    expected = [str(value) for value in run.model.tower.get_parameter("3.bias").detach().numpy()]
    assert get_nas_weight_json(str(model_dir), "tower.3.bias") == expected
    assert get_nas_weight_json(f"{model_dir}/model.ckpt-6", "3.bias") == expected
    with pytest.raises(NotFoundError, match="no tensor name contains 'arch'"):
        get_nas_weight_json(str(model_dir), "arch")
    with pytest.raises(NotFoundError, match="neither a checkpoint"):
        get_nas_weight_json(str(model_dir / "missing"), "arch")
