"""Addresses as text, and the address of this machine."""

from __future__ import annotations

import ipaddress
import platform
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.cluster.addresses import (
    AddressFamily,
    concat_ip_and_port,
    get_local_host,
    get_local_ip,
    get_local_server_addr,
    is_ipv4_supported,
    is_ipv6_address,
    resolve_hostname,
    split_address,
)
from monolith.errors import FailedPreconditionError


def resolver(answers: dict[int, str]) -> Any:
    """A `socket.getaddrinfo` that knows one address for each of some families; 0 is "any"."""

    def getaddrinfo(name: str, port: None, family: int = 0) -> list[tuple[Any, ...]]:
        if family not in answers:
            raise socket.gaierror(f"no address of {name}")
        return [(family, socket.SOCK_STREAM, 6, "", (answers[family], 0))]

    return getaddrinfo


def test_families_have_the_names_that_flags_use() -> None:
    assert (AddressFamily.IPV4, AddressFamily.IPV6) == ("ipv4", "ipv6")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.1", "10.0.0.1:10"),
        ("host.example", "host.example:10"),
        ("::1", "[::1]:10"),
        ("fe80::1", "[fe80::1]:10"),
    ],
)
def test_only_ipv6_is_put_in_brackets(host: str, address: str) -> None:
    assert concat_ip_and_port(host, 10) == address
    assert split_address(address) == (host, 10)


@pytest.mark.parametrize("text", ["", "localhost", "1.2.3.4", "1.2.3.4.5", "[::1]", "::g", "fe80::1:80:"])
def test_what_is_no_ipv6_address(text: str) -> None:
    assert not is_ipv6_address(text)


@given(ip=st.ip_addresses(), port=st.integers(0, 65535))
def test_any_address_goes_there_and_back(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
    assert is_ipv6_address(str(ip)) == (ip.version == 6)
    assert split_address(concat_ip_and_port(str(ip), port)) == (str(ip), port)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        "host:",
        ":80",
        "::1:80",
        "[::1]",
        "[::1]80",
        "[host]:80",
        "[10.0.0.1]:80",
        "host:-1",
        "host:65536",
        "host:8o",
        "host:²",
        "a b:80",
        "http://host:80",
        "[::1:80",
        "::1]:80",
        "host: 80",
    ],
)
def test_what_is_no_address_is_refused_with_its_text(address: str) -> None:
    with pytest.raises(ValueError, match="expected host:port or") as refused:
        split_address(address)
    assert repr(address) in str(refused.value)


def test_the_local_address_is_the_first_one_the_resolver_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolver({0: "10.1.2.3"}))
    assert get_local_ip() == "10.1.2.3"
    assert is_ipv4_supported()
    assert get_local_server_addr(2222) == "10.1.2.3:2222"


def test_a_machine_without_ipv4_resolves_to_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolver({socket.AF_INET6: "fd00::7"}))
    assert get_local_ip() == "fd00::7"
    assert not is_ipv4_supported()
    assert get_local_server_addr(2222) == "[fd00::7]:2222"


def test_an_unresolvable_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolver({}))
    with pytest.raises(socket.gaierror):
        get_local_ip()


def test_this_machine_has_an_address() -> None:
    assert str(ipaddress.ip_address(get_local_ip())) == get_local_ip()
    assert split_address(get_local_server_addr(1)) == (get_local_ip(), 1)
    assert get_local_host() == get_local_ip()


def test_yarn_specifies_the_address_of_this_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YARN_INET_ADDR", "1.2.3.4")
    assert get_local_host() == "1.2.3.4"


def test_the_first_cloud_native_address_goes_before_yarn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YARN_INET_ADDR", "9.9.9.9")
    monkeypatch.setenv("CLOUDNATIVE_INET_ADDR", "1.2.3.4,5.6.7.8")
    assert get_local_host() == "1.2.3.4"


@pytest.mark.parametrize("name", ["YARN_INET_ADDR", "CLOUDNATIVE_INET_ADDR"])
@pytest.mark.parametrize("value", ["", " "])
def test_a_variable_set_to_nothing_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(FailedPreconditionError, match=f"{name} must hold an address"):
        get_local_host()


@pytest.mark.parametrize(("system", "asked"), [("Linux", "box"), ("Windows", "box"), ("Darwin", "box.local")])
def test_the_name_is_resolved_as_the_system_spells_it(monkeypatch: pytest.MonkeyPatch, system: str, asked: str) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    monkeypatch.setattr(socket, "gethostbyname", {asked: "10.0.0.9"}.__getitem__)
    assert resolve_hostname() == "10.0.0.9"
