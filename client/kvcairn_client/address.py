"""Where a service listens: http://HOST:PORT, https://HOST:PORT or unix:/PATH. Pure."""

from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

_DEFAULT_PORT = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A parsed URL. socket_path: the Unix socket, else None. prefix: what stands before /v1, without a final slash."""

    host: str
    port: int
    tls: bool = False
    socket_path: str | None = None
    prefix: str = ""

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORT[self.scheme] else f"{host}:{self.port}"

    @property
    def scheme(self) -> str:
        return "https" if self.tls else "http"

    @property
    def base_url(self) -> str:
        """What control requests are sent to; over a Unix socket the host is a name only."""
        return f"{self.scheme}://{self.authority}{self.prefix}"

    def __str__(self) -> str:
        return f"unix:{self.socket_path}" if self.socket_path else self.base_url


def parse_address(url: str) -> Address:
    """Read a service's URL; ValueError says what is wrong with it."""
    if url.startswith("unix:"):
        return _unix(url)
    parts = urlsplit(url)
    if parts.scheme not in _DEFAULT_PORT or not parts.hostname:
        raise ValueError(f"a service's URL is http://HOST:PORT, https://HOST:PORT or unix:/PATH; found {url!r}")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(f"a service's URL has no user, query or fragment (the token is a parameter): {parts.hostname}")
    return Address(
        host=parts.hostname,
        port=_port(parts, url),
        tls=parts.scheme == "https",
        prefix=parts.path.rstrip("/"),
    )


def _port(parts: SplitResult, url: str) -> int:
    try:
        return parts.port or _DEFAULT_PORT[parts.scheme]
    except ValueError as error:
        raise ValueError(f"{url!r}: {error}") from None


def _unix(url: str) -> Address:
    path = url.removeprefix("unix:")
    path = path.removeprefix("//") if path.startswith("///") else path
    if not path.startswith("/"):
        raise ValueError(f"a Unix socket's URL is unix:/PATH with an absolute path; found {url!r}")
    return Address(host="localhost", port=80, socket_path=path)
