"""The examples of the pages on discovery run as they stand, against services of this machine."""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from consul_agent import ConsulAgent
from discovery_backends import mlp_variables
from ray_nodes import RayCluster
from zookeeper_server import ZooKeeperServer


def run_page(page: str, project_root: Path, **instead: str) -> dict[str, Any]:
    """The names that a page's only block leaves behind, with some of its texts replaced by those of this machine."""
    text = (project_root / "docs" / "how-to" / page).read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for old, new in instead.items():
        assert old in block
        block = block.replace(old, new)
    names: dict[str, Any] = {"__name__": "how_to"}
    exec(compile(block, page, "exec"), names)  # noqa: S102 - the reader's lines, as they stand
    return names


def test_host_files(project_root: Path, tmp_path: Path) -> None:
    names = run_page("discovery-host-files.md", project_root, **{"/shared/run-7": str(tmp_path / "run-7")})
    assert names["discovery"].query("ps") == {0: "10.0.0.1:2222"}


def test_static(project_root: Path) -> None:
    assert run_page("discovery-static.md", project_root)["discovery"].query("ps") == {
        0: "10.0.0.1:2222",
        1: "10.0.0.2:2222",
    }


def test_tf_config(project_root: Path) -> None:
    discovery = run_page("discovery-tf-config.md", project_root)["discovery"]
    assert discovery.query("worker") == {0: "h0:2222", 1: "h2:2222"}
    assert (discovery.server_type, discovery.index, discovery.addr) == ("worker", 1, "h2:2222")


def test_mlp(project_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        for name, value in mlp_variables([address], ["127.0.0.1:3333"]).items():
            monkeypatch.setenv(name, value)
        assert run_page("discovery-mlp.md", project_root)["discovery"].query("ps") == {0: address}


def test_consul(project_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ConsulAgent() as agent:
        monkeypatch.setenv("CONSUL_HTTP_HOST", "127.0.0.1")
        monkeypatch.setenv("CONSUL_HTTP_PORT", str(agent.port))
        run_page("discovery-consul.md", project_root)
        asked = [request.path.partition("?")[0] for request in agent.requests]
    assert "/v1/agent/service/register" in asked
    assert any(path.startswith("/v1/health/service/") for path in asked), "as stock Consul is asked"


def test_zookeeper(project_root: Path, zookeeper: ZooKeeperServer) -> None:
    names = run_page("discovery-zookeeper.md", project_root, **{"zk1:2181,zk2:2181": zookeeper.address})
    assert names["servers"] == {0: "10.0.0.1:2222"}


@pytest.mark.slow
def test_ray(project_root: Path, ray_cluster: RayCluster) -> None:
    names = run_page("discovery-ray.md", project_root, **{'"auto"': repr(ray_cluster.address)})
    assert names["servers"] == {0: "10.0.0.1:2222"}
    names["ray"].kill(names["registry"])
