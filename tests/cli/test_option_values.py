"""Whatever text an option is given, ``monolith train`` trains, or says what is wrong in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from monolith.cli import main
from monolith.train import RunnerConfig
from monolith.train.compat.flat_config import _kinds_of
from monolith.train.parameters import flags

OPTIONS = [name for name in flags.flag_names(RunnerConfig) if name not in {"task", "is_local"}]
NUMBERS = ["0", "-1", "", "garbage", "99999999999999999999"]
VALUES = {
    bool: ["", "garbage", "-1"],
    int: NUMBERS,
    float: [*NUMBERS, "nan"],
    str: ["", "0", "[1]"],
    dict: [*NUMBERS, "[1]", '{"a": 1}'],
}
"""For each kind of option; enumerations take the names of their members."""


def values_for(name: str) -> list[str]:
    kind = next(kind for kind in _kinds_of(RunnerConfig, name) if kind is not type(None))
    return VALUES.get(kind, VALUES[str])


QUICK = set({tuple(values_for(name)): name for name in OPTIONS}.values())
"""One option of each kind."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in OPTIONS]
)
def test_no_value_of_an_option_shows_a_traceback(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for number, value in enumerate(values_for(name)):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        # The flag under test comes last, and the last one counts. A server would only take time.
        others = ["--model_dir=m", "--serve_controller=false", "--steps=1"]
        status = main(["train", "monolith.testing:ExampleTask", *others, f"--{name}={value}"])
        said = capfd.readouterr().err
        assert status in {0, 1}
        assert "Traceback" not in said
        if status == 1:
            assert said.startswith("monolith train: error: ")
            assert said.count("\n") == 1, f"--{name}={value}"
            assert list(Path().iterdir()) in ([], [Path("m")]), "nothing but the model directory was made"


@pytest.mark.parametrize("by", ["variable", "file"])
def test_values_come_by_other_ways_too(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "monolith.testing:ExampleTask", "--model_dir", str(tmp_path / "m"), "--steps", "1"]
    for text in ("0", "[1]", '{"a": 1}'):
        if by == "variable":
            monkeypatch.setenv("MONOLITH_RELOAD_ALIAS_MAP", text)
        else:
            (tmp_path / "run.json").write_text(f'{{"reload_alias_map": {text}}}')
        assert main([*arguments, *(["--config_file", str(tmp_path / "run.json")] if by == "file" else [])]) == 1
        assert "reload_alias_map must be" in capsys.readouterr().err
