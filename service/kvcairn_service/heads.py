"""What a request's head must not say, beside what the parser refuses: two readers could take it for two requests.

Pure; RFC 9112. A proxy in front and this service must never differ about where a request ends or whom it is for.
"""

from collections.abc import Sequence

Header = tuple[bytes, bytes]
"""Name, in lower case, and value."""

MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 128

TOO_LARGE = f"a request's line and headers have at most {MAX_HEAD_BYTES} bytes in {MAX_HEADERS} headers"
TRAILERS_TOO_LARGE = f"between the bytes of a chunked body there are at most {MAX_HEAD_BYTES} others"


class HeadTooLarge(ValueError):
    """A request's line and headers are over a limit."""


class BadHead(ValueError):
    """A request's head is ambiguous; the message says what is wrong and what would be right."""


def is_too_large(target: bytes, headers: Sequence[Header]) -> bool:
    size_bytes = len(target) + sum(len(name) + len(value) + 4 for name, value in headers)
    return size_bytes > MAX_HEAD_BYTES or len(headers) > MAX_HEADERS


def check_head(*, version: str, method: bytes, target: bytes, headers: Sequence[Header]) -> None:
    """BadHead for a head that could be read in more than one way."""
    if version not in ("1.0", "1.1"):
        raise BadHead(f"HTTP/1.1 is spoken here, and HTTP/1.0; found HTTP/{version}")
    if method == b"CONNECT":
        raise BadHead("CONNECT is for proxies, and this is none")
    _check_host(version, target, [value for name, value in headers if name == b"host"])
    _check_coding(version, [value for name, value in headers if name == b"transfer-encoding"])


def _check_host(version: str, target: bytes, hosts: Sequence[bytes]) -> None:
    if len(hosts) > 1 or (version == "1.1" and not hosts):
        raise BadHead(f"a request has one Host header; found {len(hosts)}")
    if target.startswith(b"/") or target == b"*":
        return
    authority = target.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]
    if [authority.lower()] != [host.strip().lower() for host in hosts]:
        raise BadHead(f"a target names the Host itself or none: send a path, from / on; found {_shown(target)}")


def _check_coding(version: str, codings: Sequence[bytes]) -> None:
    if not codings:
        return
    if version == "1.0":
        raise BadHead("HTTP/1.0 has no Transfer-Encoding: send a Content-Length")
    if [each.strip().lower() for each in codings] != [b"chunked"]:
        raise BadHead(f"Transfer-Encoding is chunked, once, and nothing else; found {_shown(b', '.join(codings))}")


def without_upgrade(*, version: str, method: bytes, target: bytes, headers: Sequence[Header]) -> bytes:
    """The head written again without its wish for another protocol, which RFC 9110 (7.8) lets a server ignore."""
    kept = [(name, value) for name, value in headers if name not in (b"upgrade", b"http2-settings", b"connection")]
    options = [value for name, value in headers if name == b"connection"]
    if any(option.strip().lower() == b"close" for value in options for option in value.split(b",")):
        kept.append((b"connection", b"close"))
    line = method + b" " + target + b" HTTP/" + version.encode()
    lines = [line, *(name + b": " + value for name, value in kept)]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _shown(value: bytes) -> str:
    return repr(value[:80].decode("latin-1"))
