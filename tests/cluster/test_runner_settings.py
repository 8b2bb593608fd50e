"""Choice of discovery, and what comes before a runner starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from kazoo.handlers.threading import KazooTimeoutError

from monolith.cluster import (
    ContainerType,
    DiscoveryConfig,
    get_discovery,
    monolith_discovery,
    own_place,
    prepare_runner,
)
from monolith.cluster.discovery import (
    ConsulServiceDiscovery,
    HostServiceDiscovery,
    MLPServiceDiscovery,
    ServiceDiscoveryType,
    TfConfigServiceDiscovery,
    ZKServiceDiscovery,
    zookeeper,
)
from monolith.errors import UnimplementedError
from zookeeper_server import ZooKeeperServer

TF_CONFIG = json.dumps(
    {
        "cluster": {"ps": ["host0:2222"], "chief": ["host1:2222"], "worker": ["host2:2222", "host3:2222"]},
        "task": {"type": "worker", "index": 1},
    }
)


def settings(**options: Any) -> DiscoveryConfig:
    return DiscoveryConfig(**options)


def test_numbers_of_saved_configs_stay() -> None:
    assert [(each.name, each.value) for each in ServiceDiscoveryType] == [
        ("PRIMUS", 1),
        ("CONSUL", 2),
        ("ZK", 3),
        ("MLP", 4),
        ("HOST", 5),
        ("RAY", 6),
    ]
    assert (ContainerType.DOCKER.value, ContainerType.NATIVE.value) == (1, 2)
    assert settings().discovery_type is ServiceDiscoveryType.CONSUL


def test_a_local_runner_runs_no_discovery() -> None:
    assert get_discovery(settings(is_local=True)) is None
    assert own_place(settings(is_local=True, index=3), None) == ("worker", 3)
    with monolith_discovery(settings(is_local=True)) as discovery:
        assert discovery is None


def test_primus_means_tf_config_and_specifies_the_own_place() -> None:
    conf = settings(discovery_type=ServiceDiscoveryType.PRIMUS, tf_config=TF_CONFIG, server_type="ps", index=7)
    discovery = get_discovery(conf)
    assert isinstance(discovery, TfConfigServiceDiscovery)
    assert own_place(conf, discovery) == ("worker", 2)


def test_primus_without_tf_config_is_refused() -> None:
    with pytest.raises(ValueError, match="tf_config must hold"):
        get_discovery(settings(discovery_type=ServiceDiscoveryType.PRIMUS))


def test_consul_uses_the_uuid_as_the_name_of_the_service() -> None:
    conf = settings(discovery_type=ServiceDiscoveryType.CONSUL, uuid="run-7")
    with monolith_discovery(conf) as discovery:
        assert isinstance(discovery, ConsulServiceDiscovery)
        assert discovery._consul_id == "run-7"
    named = get_discovery(conf, psm="data.ranker")
    assert isinstance(named, ConsulServiceDiscovery)
    assert named._consul_id == "data.ranker"
    with pytest.raises(ValueError, match="uuid"):
        get_discovery(settings())


def test_mlp_reads_the_place_from_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLP_ROLE", "ps")
    monkeypatch.setenv("MLP_ROLE_INDEX", "4")
    conf = settings(discovery_type=ServiceDiscoveryType.MLP)
    discovery = get_discovery(conf)
    assert isinstance(discovery, MLPServiceDiscovery)
    assert own_place(conf, discovery) == ("ps", 4)


def test_host_files_are_those_of_the_given_folder(tmp_path: Path) -> None:
    conf = settings(discovery_type=ServiceDiscoveryType.HOST, discovery_dir=str(tmp_path / "job"), index=3)
    with monolith_discovery(conf) as discovery:
        assert isinstance(discovery, HostServiceDiscovery)
        assert own_place(conf, discovery) == ("worker", 3)
        discovery.register("ps", 0, "10.0.0.1:1")
    assert (tmp_path / "job" / "ps" / "0").read_text() == "10.0.0.1:1"
    with pytest.raises(ValueError, match="discovery_dir must be a folder that all processes of the job reach"):
        get_discovery(settings(discovery_type=ServiceDiscoveryType.HOST))


def test_ray_needs_the_name_of_the_job() -> None:
    with pytest.raises(ValueError, match="discovery by ray: uuid must be the name of the job's actor, got nothing"):
        get_discovery(settings(discovery_type=ServiceDiscoveryType.RAY))


def test_zookeeper_uses_the_name_of_the_job_and_is_closed(
    zookeeper: ZooKeeperServer, nothing_left_behind: None
) -> None:
    conf = settings(discovery_type=ServiceDiscoveryType.ZK, deep_insight_name="runner-job", zk_server=zookeeper.address)
    with monolith_discovery(conf) as discovery:
        assert isinstance(discovery, ZKServiceDiscovery)
        assert own_place(conf, discovery) == ("worker", 0)
        discovery.register("ps", 0, "10.0.0.1:1")
        assert discovery._path == "/monolith/runner-job"


def test_a_zookeeper_that_does_not_answer_is_a_time_out(monkeypatch: pytest.MonkeyPatch, unused_address: str) -> None:
    monkeypatch.setattr(zookeeper, "START_TIMEOUT_SECONDS", 0.2)
    conf = settings(discovery_type=ServiceDiscoveryType.ZK, deep_insight_name="job", zk_server=unused_address)
    with pytest.raises(KazooTimeoutError):
        get_discovery(conf)


def test_discovery_is_closed_when_the_block_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(ConsulServiceDiscovery, "close", lambda self: closed.append(True))
    with pytest.raises(RuntimeError, match="training failed"), monolith_discovery(settings(uuid="run-7")):
        raise RuntimeError("training failed")
    assert closed == [True]


@pytest.mark.parametrize(
    ("options", "index"),
    [
        ({"index": 0}, 5),
        ({"index": -1}, 5),
        ({"index": 2}, 2),
        ({"server_type": "ps"}, 0),
        ({"enable_gpu_training": False}, 0),
        ({"enable_partial_sync_training": False}, 0),
    ],
)
def test_a_gpu_worker_without_an_index_takes_its_rank(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], index: int
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "5")
    before = sys.excepthook
    conf = settings(**{"enable_gpu_training": True, "enable_partial_sync_training": True, **options})
    assert prepare_runner(conf, {}).index == index
    assert sys.excepthook is not before, "an uncaught exception ends the job"


@pytest.mark.parametrize("options", [{}, {"enable_gpu_training": True}, {"enable_partial_sync_training": True}])
def test_a_worker_that_does_not_ask_for_both_keeps_its_index(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "5")
    assert prepare_runner(settings(**options), {}).index == 0


def test_without_mpi_the_index_stays() -> None:
    conf = settings(enable_gpu_training=True, enable_partial_sync_training=True)
    assert prepare_runner(conf, {}) is conf


def test_kafka_settings_that_are_set_become_flags() -> None:
    flags: dict[str, object] = {"kafka_topics": "old", "kafka_servers": "kept", "other": 1}
    prepare_runner(settings(kafka_topics="a,b", kafka_group_id="g"), flags)
    assert flags == {"kafka_topics": "a,b", "kafka_group_id": "g", "kafka_servers": "kept", "other": 1}


def test_a_process_of_a_data_service_does_not_become_a_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MLP_ROLE": "dispatcher", "MLP_DISPATCHER_NUM": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnimplementedError, match="MLP role dispatcher"):
        prepare_runner(settings(), {})
