"""Clients of ZooKeeper: server addresses and credentials."""

from __future__ import annotations

import logging
import socket
from typing import Any

from monolith import environment
from monolith.cluster.addresses import concat_ip_and_port

try:
    from kazoo.client import KazooClient
except ModuleNotFoundError as err:
    raise ModuleNotFoundError(
        "discovery through ZooKeeper needs kazoo, which is not installed; run: pip install 'monolith-torch[zookeeper]'",
        name=err.name,
    ) from err

_log = logging.getLogger(__name__)

_PORT = 2181
_HOSTS: list[str] = []
_HOSTS_IPV6: list[str] = []
"""Servers to use when none is given. Empty: a fleet passes its servers as ``zk_server``."""


def is_ipv6_only() -> bool:
    """Returns whether this machine has no IPv4 address.

    If ``MY_HOST_IP``, ``MY_POD_IP`` or ``MY_HOST_IPV6`` is set, the first two decide; otherwise the name of this
    machine is resolved.
    """
    if environment.first_of("MY_HOST_IP", "MY_POD_IP", "MY_HOST_IPV6"):
        ipv4_addr = environment.first_of("MY_HOST_IP", "MY_POD_IP")
    else:
        try:
            ipv4_addr = socket.gethostbyname(socket.gethostname())
        except OSError:
            ipv4_addr = None
    _log.info("ipv4 address of this machine is %s, ipv6 only is %s", ipv4_addr, not ipv4_addr)
    return not ipv4_addr


def default_zk_servers(use_ipv6: bool = False) -> str:  # noqa: FBT001, FBT002, RUF100  # the public signature
    """Returns the built-in servers as a connection string; empty, since none are built in."""
    hosts = _HOSTS_IPV6 if use_ipv6 or is_ipv6_only() else _HOSTS
    return ",".join(concat_ip_and_port(host, _PORT) for host in hosts)


def get_zk_auth_data() -> list[tuple[str, str]] | None:
    """Returns the credentials of this process: scheme ``digest`` with ``ZK_AUTH`` (``user:password``), if set."""
    auth = environment.get("ZK_AUTH")
    return [("digest", auth)] if auth else None


def require_zk_servers(zk_server: str | None) -> str:
    """Returns the connection string given, or the built-in one.

    Raises:
        ValueError: There is neither.
    """
    servers = zk_server or default_zk_servers()
    if not servers:
        raise ValueError(
            "zookeeper: no server given and none is built in; set zk_server, such as 'host1:2181,host2:2181'"
        )
    return servers


class MonolithKazooClient(KazooClient):  # type: ignore[misc, no-any-unimported, unused-ignore]  # kazoo has no types
    """A kazoo client that uses the credentials of this process unless it is given others."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("auth_data", get_zk_auth_data())
        super().__init__(*args, **options)
