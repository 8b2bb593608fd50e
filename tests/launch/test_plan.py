"""What a job consists of, and what each of its processes is told."""

from __future__ import annotations

from typing import Any

import pytest

from monolith.cluster.discovery import ServiceDiscoveryType
from monolith.launch import LaunchPlan, Resources, RestartConfig, Role
from monolith.launch.role import Ending, bytes_of, ending_of, told_ending
from monolith.train import RunnerConfig
from monolith.train.parameters import flags


def plan_of(**options: Any) -> LaunchPlan:
    return LaunchPlan(task="m:T", options=RunnerConfig(**{"num_ps": 2, "model_dir": "/m", **options}))


class TestRoles:
    def test_extra_and_redundant_servers_are_servers_too(self) -> None:
        plan = plan_of(num_workers=2, num_extra_ps=1, num_redundant_ps=2)
        assert plan.roles_of("ps") == tuple(Role("ps", index) for index in range(5))
        assert [str(role) for role in plan.roles][-2:] == ["worker 0", "worker 1"]

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"model_dir": ""}, "--model_dir: set the directory of the model"),
            ({"num_ps": 0, "num_workers": 3}, "got 0 of them for 3 workers; give --num_ps 1 or more"),
            ({"num_workers": 0}, "--num_workers: a job has 1 worker or more, got 0"),
            ({"num_extra_ps": -1}, "--num_extra_ps: must be >= 0, got -1"),
        ],
    )
    def test_a_job_that_cannot_run_is_refused(self, options: dict[str, Any], text: str) -> None:
        with pytest.raises(ValueError, match=text):
            plan_of(**options)


class TestCommands:
    def test_a_role_receives_every_option_that_was_set(self) -> None:
        plan = plan_of(
            num_workers=2,
            discovery_type=ServiceDiscoveryType.ZK,
            clear_nn=True,
            reload_alias_map={"a b": "c"},
            partial_recovery=None,
        )
        told = plan.arguments(Role("worker", 1))
        assert told[:2] == ["worker", "m:T"]
        values = dict(zip(told[2::2], told[3::2], strict=True))
        assert values == {
            "--num_ps": "2",
            "--num_workers": "2",
            "--discovery_type": "zk",
            "--clear_nn": "true",
            "--reload_alias_map": '{"a b": "c"}',
            "--partial_recovery": "none",
            "--model_dir": "/m",
            "--index": "1",
        }

    def test_a_role_parses_the_arguments_it_receives(self) -> None:
        plan = plan_of(num_workers=2, clear_nn=True, reload_alias_map={"a b": "c"}, retry_wait_in_secs=3)
        heard = flags.parse(RunnerConfig(), plan.arguments(Role("worker", 1))[2:])
        assert heard.index == 1
        assert all(getattr(heard, name) == value for name, value, origin in plan.options.describe() if origin)

    def test_options_that_the_launcher_sets_itself_are_passed_once(self) -> None:
        plan = plan_of(server_type="worker", index=7, is_local=False, task="other")
        told = plan.arguments(Role("ps", 1))
        assert told == ["ps", "m:T", "--num_ps", "2", "--model_dir", "/m", "--index", "1"]

    def test_max_steps_and_deterministic_are_passed_to_every_role(self) -> None:
        plan = LaunchPlan(
            task="m:T",
            options=RunnerConfig(num_ps=1, model_dir="/m"),
            max_steps=9,
            deterministic=True,
            program=("run",),
        )
        assert plan.command(Role("ps", 0))[-5:] == ["--max_steps", "9", "--deterministic", "--index", "0"]
        assert plan.command(Role("ps", 0))[:2] == ["run", "ps"]

    def test_launcher_defaults_do_not_override_explicit_options(self) -> None:
        plan = plan_of(uuid="mine").with_options({"uuid": "other", "deep_insight_name": "job"})
        assert (plan.options.uuid, plan.options.deep_insight_name) == ("mine", "job")
        assert plan.options.is_set("deep_insight_name")
        assert not plan.options.is_set("zk_server")

    def test_the_options_of_the_caller_stay(self) -> None:
        plan = plan_of()
        plan.with_options({"deep_insight_name": "job"})
        assert plan.options.deep_insight_name is None


class TestResources:
    def test_a_role_gets_one_processor_per_thread_by_default(self) -> None:
        assert plan_of().resources_of("ps").cpus == 1
        assert plan_of(intra_op_parallelism_threads=4).resources_of("worker").cpus == 4
        given = Resources(cpus=0.5, memory_bytes=7)
        plan = LaunchPlan(task="m:T", options=RunnerConfig(num_ps=1, model_dir="/m"), resources={"ps": given})
        assert plan.resources_of("ps") == given
        assert plan.resources_of("worker") != given

    @pytest.mark.parametrize(("text", "number"), [("1.5Gi", 3 * 2**29), ("2g", 2 * 10**9), ("64MiB", 2**26), ("5", 5)])
    def test_memory_is_written_as_schedulers_do(self, text: str, number: int) -> None:
        assert bytes_of(text) == number

    @pytest.mark.parametrize("text", ["", "many", "-1G", "4 G", "i", "4iB"])
    def test_other_texts_are_no_memory(self, text: str) -> None:
        with pytest.raises(ValueError, match="such as 4Gi, 500M"):
            bytes_of(text)

    @pytest.mark.parametrize("values", [{"cpus": 0}, {"cpus": float("nan")}, {"memory_bytes": 0}])
    def test_nothing_is_no_resource(self, values: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=f"resources: {next(iter(values))} must be"):
            Resources(**values)


class TestEndings:
    @pytest.mark.parametrize(
        ("code", "ending", "words"),
        [
            (0, Ending.DONE, "is done"),
            (130, Ending.STOPPED, "was stopped (exit code 130)"),
            (75, Ending.DIED, "requested a restart (exit code 75)"),
            (-9, Ending.DIED, "was ended by SIGKILL"),
            (-11, Ending.DIED, "was ended by SIGSEGV"),
            (-50, Ending.DIED, "was ended by signal 50"),
            (1, Ending.FAILED, "failed (exit code 1)"),
            (74, Ending.FAILED, "failed (exit code 74)"),
        ],
    )
    def test_exit_codes_determine_the_outcome_of_a_role(self, code: int, ending: Ending, words: str) -> None:
        assert ending_of(code) is ending
        assert told_ending(code) == words

    @pytest.mark.parametrize("name", ["limit", "first_pause_seconds", "longest_pause_seconds", "healthy_seconds"])
    def test_policies_have_no_negative_numbers(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"restarts: {name} must be >= 0, got -1"):
            RestartConfig(**{name: -1})

    def test_pauses_grow_to_their_limit_however_often_a_role_dies(self) -> None:
        policy = RestartConfig(first_pause_seconds=0.5, longest_pause_seconds=3)
        assert [policy.pause_seconds(deaths) for deaths in (1, 2, 3, 4, 5, 5000)] == [0, 0.5, 1, 2, 3, 3]
