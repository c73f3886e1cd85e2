"""Who may speak to an open service: pure checks of Host and Origin against browsers and DNS rebinding.

A page on the web can make a browser on this machine send requests to loopback. Its Host (after rebinding) and its
Origin then carry the page's name, so an open service answers only to loopback names and those it was told.
"""

import ipaddress
import re
from collections.abc import Collection

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")

WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound


def is_loopback(name: str) -> bool:
    """Whether `name` (without a port) is localhost or a loopback address."""
    bare = name.lower().strip("[]")
    address = _address(bare)
    return bare == "localhost" or (address is not None and address.is_loopback)


def may_call(host: str | None, origin: str | None, open_to: Collection[str]) -> bool:
    """Whether a request with these headers may reach an open service that was opened to the names `open_to`."""
    if host is None or not _is_known(_host_name(host), open_to):
        return False
    return origin is None or _is_known(_origin_name(origin), open_to)


def is_own_page(fetch_site: str | None) -> bool:
    """Whether a browser's Sec-Fetch-Site says that no other page than the service's own made it ask; None: no browser.

    `none` is a person who typed the address. Another port of this machine is another site to us, though `same-site`
    to a browser.
    """
    return fetch_site is None or fetch_site in ("same-origin", "none")


def _is_known(name: str | None, open_to: Collection[str]) -> bool:
    if name is None:
        return False
    if is_loopback(name) or name in open_to:
        return True
    # Opened to every address of this machine: any address may be it; a name still has to be told, since
    # only names can be rebound.
    return _address(name) is not None and not WILDCARDS.isdisjoint(open_to)


def _host_name(host: str) -> str | None:
    """The name in a Host header; None for what is no host with at most a port."""
    found = _HOST.fullmatch(host)
    return found[1].lower().strip("[]") if found else None


def _origin_name(origin: str) -> str | None:
    """The name in an Origin header; None for `null` and whatever else is no web page's origin."""
    scheme, separator, host = origin.partition("://")
    return _host_name(host) if separator and scheme.lower() in ("http", "https") else None


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
