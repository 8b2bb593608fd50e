"""Addresses of peers as text: ``host:port``, and ``[ip]:port`` for IPv6; and the address of this machine."""

from __future__ import annotations

import ipaddress
import platform
import socket
from typing import Final

from monolith import environment
from monolith.errors import FailedPreconditionError

EVERY_INTERFACE = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to
"""Wildcard hosts: a server listens on them, but they are no address for clients."""
_MAX_PORT = 65535


class AddressFamily:
    """Names of the two address families, as flags and configs spell them."""

    IPV4 = "ipv4"
    IPV6 = "ipv6"


def is_ipv6_address(ip: str) -> bool:
    """Returns whether the text is an IPv6 address; False for a host name or any other text.

    >>> is_ipv6_address("::1"), is_ipv6_address("127.0.0.1"), is_ipv6_address("localhost")
    (True, False, False)
    """
    try:
        return ipaddress.ip_address(ip).version == 6
    except ValueError:
        return False


def concat_ip_and_port(ip: str, port: int | str) -> str:
    """Returns the address of a port on a host; an IPv6 host is put in brackets.

    >>> concat_ip_and_port("10.0.0.1", 80), concat_ip_and_port("::1", 80)
    ('10.0.0.1:80', '[::1]:80')
    """
    return f"[{ip}]:{port}" if is_ipv6_address(ip) else f"{ip}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Returns the host, without brackets, and the port of an address.

    >>> split_address("[fe80::1]:2222")
    ('fe80::1', 2222)

    Raises:
        ValueError: It is not ``host:port`` or ``[ip]:port``. IPv6 without brackets is rejected: the end of the address
            would be ambiguous.
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    is_host = is_ipv6_address(bare) if bracketed else bool(bare) and not set(bare) & set(":[]/ ")
    is_port = port.isascii() and port.isdigit() and int(port) <= _MAX_PORT
    if not (colon and is_host and is_port):
        raise ValueError(f"address: expected host:port or [ipv6]:port with a port up to {_MAX_PORT}, got {address!r}")
    return bare, int(port)


def get_local_ip() -> str:
    """Returns the first address that the resolver gives for this machine's name; if that fails, resolves it as IPv6.

    Raises:
        socket.gaierror: The name resolves in neither family.
    """
    name = socket.gethostname()
    try:
        infos = socket.getaddrinfo(name, None)
    except socket.gaierror:
        infos = socket.getaddrinfo(name, None, family=socket.AF_INET6)
    return str(infos[0][4][0])


def is_ipv4_supported() -> bool:
    """Returns whether this machine's own address is an IPv4 one."""
    return not is_ipv6_address(get_local_ip())


def get_local_server_addr(port: int) -> str:
    """Returns the address under which other machines reach a port of this machine."""
    return concat_ip_and_port(get_local_ip(), port)


def get_local_host() -> str:
    """Returns the host of this container in the scheduler's network.

    The first entry of ``CLOUDNATIVE_INET_ADDR`` (a comma-separated list), else ``YARN_INET_ADDR``, else
    `get_local_ip`.

    Raises:
        FailedPreconditionError: The variable that decides is set to nothing.
    """
    cloud_native = environment.get("CLOUDNATIVE_INET_ADDR")
    yarn = environment.get("YARN_INET_ADDR")
    if cloud_native is not None:
        name, host = "CLOUDNATIVE_INET_ADDR", cloud_native.split(",")[0].strip()
    elif yarn is not None:
        name, host = "YARN_INET_ADDR", yarn.strip()
    else:
        name, host = "host name", get_local_ip()
    if not host:
        raise FailedPreconditionError(
            f"local host: {name} must hold an address, got {(cloud_native or yarn)!r}; set it, or remove the variable"
        )
    return host


def resolve_hostname() -> str:
    """Returns the IPv4 address of this machine's name; outside Linux and Windows, of the name with ``.local``.

    Raises:
        socket.gaierror: The name has no IPv4 address.
    """
    name = socket.gethostname()
    return socket.gethostbyname(name if platform.system() in {"Windows", "Linux"} else f"{name}.local")


PS_JOB_NAME: Final = "ps"
"""The job of parameter servers."""


def ps_device(index: int) -> str:
    """Returns the CPU of a parameter server; the index is not checked.

    >>> ps_device(3)
    '/job:ps/task:3/device:CPU:0'
    """
    return f"/job:{PS_JOB_NAME}/task:{index}/device:CPU:0"
