"""What a package adds by entry points is used by its name or URL, everywhere that those of this package are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import monolith as ml
from monolith.cli import main
from monolith.cluster import DiscoveryConfig, get_discovery, is_scheduled, own_place
from monolith.cluster.discovery import ScheduledDiscovery, ServiceDiscoveryType
from monolith.cluster.runner_settings import _BUILTIN, _SERVICES
from monolith.deltalog import DeltaLog, transport_of
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.launch import LaunchPlan, Role, local_job
from monolith.online import DeltaPublisher, Follower
from monolith.tables import LocalStore, TableGroup
from monolith.train import RunnerConfig
from monolith.train.config.trainer_config import PublishingConfig
from other_packages import EXAMPLE, installed, write_package

TASK = "monolith.testing:ExampleTask"
STORE = ["--model_dir", "s3://b/m", "--num_ps", "1", "--num_workers", "2"]


@pytest.fixture
def example() -> Iterator[None]:
    with installed(EXAMPLE):
        yield


@pytest.mark.usefixtures("example")
class TestTransport:
    def test_a_log_is_published_followed_and_inspected_by_its_url(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        place = f"mem2://{tmp_path}/log"
        columns = [ml.Segment(dim=2)]
        trained = LocalStore({"item": ml.TableConfig(columns)})
        served = LocalStore({"item": ml.TableConfig(columns, serving=True)})
        with DeltaPublisher(trained, place, interval=0.1):
            TableGroup.of_store(trained)["item"].assign([7], [[0.5, 0.25]])
        with Follower(served, place) as follower:
            follower.catch_up()
            assert follower.lag.increments == 0
        assert TableGroup.of_store(served)["item"].lookup([7]).tolist() == [[0.5, 0.25]]
        assert main(["log", "verify", place]) == 0
        assert "and 0 bases read, all as written" in capsys.readouterr().out

    def test_one_that_holds_no_bases_needs_a_folder_for_them(self, tmp_path: Path) -> None:
        place = f"mem2://{tmp_path}/log"
        with DeltaLog(place) as log, pytest.raises(FailedPreconditionError, match="a base needs a folder"):
            log.save_base({}, name="first", numbers={})
        with DeltaLog(place, base_folder=str(tmp_path / "bases")) as log:
            assert log.save_base({}, name="first", numbers={}, dense=b"weights").path == str(
                tmp_path / "bases" / "first"
            )
        with pytest.raises(ValueError, match=re.escape(f"a log at '{place}' has no room for bases; give base_folder")):
            PublishingConfig(log=place)
        assert PublishingConfig(log=place, base_folder="bases").log == place

    def test_settings_of_kafka_are_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["log", "list", f"mem2://{tmp_path}/log", "--kafka", "a=b"]) == 1
        assert "is no topic; leave it out" in capsys.readouterr().err

    def test_a_folder_with_a_colon_is_a_folder(self, tmp_path: Path) -> None:
        assert transport_of(tmp_path / "mem2:log") is transport_of(tmp_path)


class TestTransportNames:
    def test_an_unknown_scheme_is_refused_with_the_one_that_was_probably_meant(self) -> None:
        with pytest.raises(
            InvalidArgumentError, match=r"scheme of its URL must be .*, got 'kafa'; did you mean 'kafka'\?"
        ):
            DeltaLog("kafa://broker:9092/topic")
        with installed(EXAMPLE), pytest.raises(InvalidArgumentError, match=r"did you mean 'mem2'\?"):
            DeltaLog("mem3:///log")
        with pytest.raises(InvalidArgumentError, match="got 'mem2'"):
            DeltaLog("mem2:///log")

    @pytest.mark.parametrize("scheme", ["kafka", "memory"])
    def test_a_scheme_of_ours_or_of_fsspec_cannot_be_taken(self, scheme: str, tmp_path: Path) -> None:
        entry = f"[monolith.transports]\n{scheme} = ext_{scheme}:Other"
        site = write_package(tmp_path, f"ext_{scheme}", entry)
        with installed(site), pytest.raises(FailedPreconditionError, match=f"got monolith-torch and ext_{scheme};"):
            DeltaLog(f"{scheme}://broker:9092/topic")


class TestDiscovery:
    @pytest.fixture(autouse=True)
    def _example(self, example: None) -> None:
        pass

    def test_a_process_is_found_by_the_url(self, tmp_path: Path) -> None:
        settings = DiscoveryConfig(discovery_type=f"board://{tmp_path}/job")
        first, second = get_discovery(settings), get_discovery(settings)
        assert first is not None
        assert second is not None
        first.register("ps", 0, "10.0.0.1:2222")
        assert second.query_all() == {"ps": {0: "10.0.0.1:2222"}}
        assert own_place(settings, second) == ("worker", 0)

    def test_a_name_without_a_url_is_enough(self) -> None:
        named = get_discovery(DiscoveryConfig(discovery_type="board"))
        assert named is not None
        assert type(named).__name__ == "BoardDiscovery"
        assert type(get_discovery(DiscoveryConfig(discovery_type="mlp"))).__name__ == "MLPServiceDiscovery"

    def test_options_and_commands_take_it_as_it_is(self, tmp_path: Path) -> None:
        options = RunnerConfig(num_ps=1, num_workers=2, model_dir="/m", discovery_type=f"board://{tmp_path}")
        assert options.runner_settings().discovery_type == f"board://{tmp_path}"
        with local_job(LaunchPlan(task="m:T", options=options)) as plan:
            words = plan.arguments(Role("worker", 1))
        assert words[words.index("--discovery_type") + 1] == f"board://{tmp_path}"

    def test_a_scheduler_gives_a_process_its_place(self) -> None:
        settings = DiscoveryConfig(discovery_type="roster://worker/1", server_type="ps", index=7)
        assert own_place(settings, get_discovery(settings)) == ("worker", 1)

    def test_a_scheduler_cannot_be_used_by_a_launcher(self, capsys: pytest.CaptureFixture[str]) -> None:
        options = RunnerConfig(num_ps=1, num_workers=2, model_dir="/m", discovery_type="roster://worker/1")
        with pytest.raises(ValueError, match="--discovery_type roster selects which process of a job this one is"):
            local_job(LaunchPlan(task="m:T", options=options)).__enter__()
        assert main(["launch", TASK, "--print", "yarn", *STORE, "--discovery_type", "roster://worker/1"]) == 1
        assert "--discovery_type: YARN places containers anywhere" in capsys.readouterr().err
        assert main(["launch", TASK, "--print", "yarn", *STORE, "--discovery_type", "board:///shared/job"]) == 0
        assert "--discovery_type board:///shared/job" in capsys.readouterr().out

    def test_the_role_of_a_command_is_compared_with_that_of_the_scheduler(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["ps", TASK, "--model_dir", "m", "--discovery_type", "roster://worker/1"]) == 1
        assert "this is a ps by its command, and worker 1 by roster" in capsys.readouterr().err

    @pytest.mark.parametrize("kind", ["roster://worker/1", "primus", "mlp", "ray"])
    def test_shards_register_with_services_that_hold_what_is_registered(
        self, kind: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["serve", "ranker=x", "--shard", "0/3", "--port", "0", "--discovery_type", kind]) == 1
        assert f"another package, got {kind}; give one of them" in capsys.readouterr().err

    @pytest.mark.parametrize("command", [["worker", TASK, *STORE], ["serve", "ranker=x", "--shard", "0/3"]])
    def test_an_unknown_name_is_one_line(self, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert main([*command, "--discovery_type", "bord:///x"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert (
            "must be one of primus, consul, zk, mlp, host, ray, board, roster, got 'bord'; did you mean 'board'?"
            in line
        )


def test_our_schedulers_are_known_without_an_import() -> None:
    for name in _BUILTIN:
        assert is_scheduled(name) is issubclass(_SERVICES.get(name), ScheduledDiscovery), name
    assert {kind.name.lower() for kind in ServiceDiscoveryType} <= _BUILTIN.keys()


def test_a_service_that_lacks_methods_is_refused_before_the_run(tmp_path: Path) -> None:
    code = "from monolith.cluster.discovery import ServiceDiscovery\nclass Half(ServiceDiscovery): ..."
    site = write_package(tmp_path, "ext_half", "[monolith.discovery]\nhalf = ext_half:Half", code)
    with (
        installed(site),
        pytest.raises(FailedPreconditionError, match="without deregister, query_all, register;"),
    ):
        RunnerConfig(discovery_type="half")
