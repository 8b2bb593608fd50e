"""The page lists the original's variables; those that work name a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from monolith.train.compat.refusal import REFUSED_VARIABLES
from train.compat.evidence import exists

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "options.md").read_text(encoding="utf-8")
ROWS = {
    name: (status, text)
    for names, status, text in re.findall(r"^\| (`[^|]+`) \|[^|\n]*\| (works|not read) \| (.*) \|$", PAGE, re.MULTILINE)
    for name in re.findall(r"`([^`]+)`", names)
}
VARIABLES = [
    "MONOLITH_WITH_HOROVOD",
    "MONOLITH_WITH_OPTIMIZED_HOROVOD",
    "MONOLITH_WITH_BYTEPS",
    "MONOLITH_WITH_BYTEPS_FID",
    "MONOLITH_WITH_BYTEPS_BWD_CAST",
    "MONOLITH_WITH_BYTEPS_FWD_GDR",
    "MONOLITH_WITH_BYTEPS_ALLREDUCE",
    "MONOLITH_WITH_ALLREDUCE_FUSION",
    "MONOLITH_SKIP_ALLREDUCE",
    "MONOLITH_SYNC_EMPTY_RANK0_PS_SHARD",
    "MONOLITH_GPU_FEATURE_FACTORY_FUSION_LEVEL",
    "MONOLITH_BENCHMARK_BPS",
    "HADOOP_HDFS_HOME",
    "zk_servers",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "TF_CONFIG",
    "CONSUL_HTTP_HOST",
    "TCE_HOST_IP",
    "CONSUL_HTTP_PORT",
    "ZK_AUTH",
    "MY_HOST_IP",
    "MY_POD_IP",
    "MY_HOST_IPV6",
    "MLP_ROLE",
    "MLP_ROLE_INDEX",
    "MLP_PORT",
    "MLP_SSH_PORT",
    "TENSORBOARD_LOG_PATH",
    "PRIMUS_AM_RPC_HOST",
    "PRIMUS_AM_RPC_PORT",
    "CLOUDNATIVE_INET_ADDR",
    "YARN_INET_ADDR",
    "MONOLITH_METRIC_PREFIX",
    "MONOLITH_FORCE_GPU_COMPATIBLE",
]


@pytest.mark.parametrize("name", VARIABLES)
def test_the_page_lists_the_upstream_variables(name: str) -> None:
    assert (name in ROWS) != (name in REFUSED_VARIABLES)


@pytest.mark.parametrize("name", sorted(name for name, (status, _) in ROWS.items() if status == "works"))
def test_a_supported_variable_names_an_existing_test(name: str) -> None:
    ids = re.findall(r"`(tests/[^`]+)`", ROWS[name][1])
    assert ids
    assert [each for each in ids if not exists(each)] == []
