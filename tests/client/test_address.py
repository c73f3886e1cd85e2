"""A service's URL, as a user writes it."""

import pytest

from kvcairn_client.address import parse_address
from kvcairn_client.budgets import Budgets


@pytest.mark.parametrize(
    ("url", "host", "port", "authority"),
    [
        ("http://127.0.0.1:7420", "127.0.0.1", 7420, "127.0.0.1:7420"),
        ("http://cairn", "cairn", 80, "cairn"),
        ("https://cairn.example/", "cairn.example", 443, "cairn.example"),
        ("https://cairn.example:80", "cairn.example", 80, "cairn.example:80"),
        ("http://[::1]:7420", "::1", 7420, "[::1]:7420"),
    ],
)
def test_host_and_port(url: str, host: str, port: int, authority: str) -> None:
    address = parse_address(url)
    assert (address.host, address.port, address.authority) == (host, port, authority)
    assert (address.tls, address.prefix, address.socket_path) == (url.startswith("https"), "", None)


def test_a_prefix_stands_before_every_path() -> None:
    address = parse_address("https://proxy.example/cache/kv/")
    assert (address.prefix, address.base_url) == ("/cache/kv", "https://proxy.example/cache/kv")


@pytest.mark.parametrize("url", ["unix:/run/kvcairn.sock", "unix:///run/kvcairn.sock"])
def test_a_unix_socket(url: str) -> None:
    address = parse_address(url)
    assert address.socket_path == "/run/kvcairn.sock"
    assert str(address) == "unix:/run/kvcairn.sock"


@pytest.mark.parametrize(
    "url",
    [
        "", "127.0.0.1:7420", "localhost:7420", "ftp://host", "http://", "http://:80", "http://host:port", "http://host:99999",
        "unix:relative", "unix:", "http://host?x=1", "http://host#x", "http://name:secret@host",
    ],
)  # fmt: skip
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - several messages, none of which may repeat a password
        parse_address(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_a_budget_that_bounds_nothing_is_refused_by_name(value: float) -> None:
    with pytest.raises(ValueError, match="stall_seconds"):
        Budgets(stall_seconds=value)
