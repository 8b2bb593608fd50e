"""``monolith train --help`` shows what matters, as it is; ``--help-all`` the rest, and neither what is refused."""

from __future__ import annotations

import re

import pytest

from monolith.cli import main
from monolith.cli._arguments.train import MATTERING, MEANT, OPTION_PREFIX, STREAM_ONLY, mattering_options
from monolith.train import RunnerConfig
from monolith.train.compat.effects import Refused, effects_of
from monolith.train.parameters import flags

REFUSED = [
    name
    for name in flags.flag_names(RunnerConfig)
    if any(isinstance(effect, Refused) for effect in effects_of(RunnerConfig)[name])
]


def shown_by(flag: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stopped:
        main(["train", flag])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"^  --([\w-]+)", text, re.MULTILINE))


def test_what_matters_is_grouped_and_described_with_its_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown_by("--help", capsys, monkeypatch)
    assert flags_in(text) == {
        *mattering_options(),
        *(
            "help-all",
            "out",
            "key",
            "steps",
            "max_steps",
            "config_file",
            "deterministic",
            "dry-run",
            "print-config",
            "json",
            "launcher",
            "max_restarts",
            "ray_address",
            "ps_cpus",
            "ps_memory",
            "worker_cpus",
            "worker_memory",
            "stream",
            *STREAM_ONLY,
        ),
    }
    assert all(f"\n{title}:\n" in text for title in ("what to do", *MATTERING))
    line = " ".join(text.split())
    for name, option in mattering_options().items():
        assert re.search(rf"--{name} (\S+ )?{re.escape(option.help)}", line)
    assert "--checkpoints_max_to_keep N newest checkpoints that stay (default: 10)" in line


def test_the_shown_options_are_those_of_a_run_with_its_defaults() -> None:
    for name, option in mattering_options().items():
        assert name in flags.flag_names(RunnerConfig)
        assert name not in REFUSED
        if option.default is not None or "(default:" not in option.help:
            assert (option.default or None) == (RunnerConfig.default_of(name) or None), name


def test_help_all_adds_every_other_option_with_its_meaning_and_none_that_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown_by("--help-all", capsys, monkeypatch)
    shown = flags_in(text)
    assert shown.isdisjoint(REFUSED)
    assert len(REFUSED) > 20
    assert shown >= set(flags.flag_names(RunnerConfig)) - set(REFUSED) - {"task", "is_local"}
    meaning = "Initial capacity of a table in rows; 0: starts small. (default: 0)"
    assert f"--hashtable_init_capacity VALUE {meaning}" in " ".join(text.split())


def test_a_refused_option_still_gets_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "monolith.testing:ExampleTask", "--model_dir", "m", "--dc_aware"]) == 1
    assert "option dc_aware=True (from flag) is refused" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--lr", "0.1"], "of rows in Slot(learning_rate=...), of dense weights in the optimizer that Task.optimizers"),
        (["--learning_rate=0.1"], "--params_override '{\"learning_rate\": 0.01}'"),
        (["--batch_size", "64"], "--params_override '{\"batch_size\": 512}'"),
        (["--epochs", "3"], "repeat it in input_fn"),
        (["--output_dir", "m"], "did you mean --model_dir?"),
        (["--resume"], "the same command resumes automatically"),
    ],
)
def test_what_users_of_other_programs_write_is_answered_with_what_they_mean(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", "my:Task", *given])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert line.startswith(f"monolith train: error: unrecognized arguments: {' '.join(given)}; ")


def test_no_flag_of_ours_stands_among_those_of_other_programs() -> None:
    assert not {flag.removeprefix("--") for flag in MEANT}.intersection(flags.flag_names(RunnerConfig))


def test_options_are_parsed_under_the_names_that_a_run_reads() -> None:
    assert OPTION_PREFIX == flags._TARGET


def test_a_program_of_ones_own_describes_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        flags.parse(RunnerConfig(), ["--help"])
    shown = capsys.readouterr().out
    assert "Directory of checkpoints." in shown
    assert "--dc_aware" not in shown
