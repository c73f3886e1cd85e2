"""Requests by hand that are too much, or that two readers could read in two ways: each is refused and ends there.

RFC 9112 is the oracle. What may be smuggled is a second request, hidden where a laxer reader sees one: every row tells
how many answers there are.
"""

import contextlib
import json
import re
import time

import psutil
import pytest

from service_samples import chain, chain_records, layout_document
from sockets import connect, eventually, head, read_to_end

HOST, CLOSE, JSON = b"host: localhost\r\n", b"connection: close\r\n", b"content-type: application/json\r\n"
GET = b"GET /v1/stats HTTP/1.1\r\n"
POST = b"POST /v1/prefixes:lookup HTTP/1.1\r\n" + HOST + JSON
CHUNKED = b"transfer-encoding: chunked\r\n"
HIDDEN = GET + HOST + CLOSE + b"\r\n"
UPGRADE = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQ\r\n"
TRAILER = b"x-trailer: " + b"t" * 50 + b"\r\n"


def get(more=b"", line=GET):
    return line + HOST + CLOSE + more + b"\r\n"


def post(more, body, end=HIDDEN):
    return POST + more + b"\r\n" + body + end


ROWS = {
    # Versions, methods and targets
    "HTTP/0.9": (b"GET /v1/stats\r\n\r\n", [400], "HTTP/1.1 is spoken here"),
    "HTTP/1.0": (b"GET /v1/stats HTTP/1.0\r\n" + HOST + b"\r\n", [200], ""),
    "HTTP/1.2": (get(line=b"GET /v1/stats HTTP/1.2\r\n"), [400], "version"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400], "HTTP/1.1"),
    "a proxy's preface": (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n" + get(), [400], "method"),
    "a method nobody has": (get(line=b"BREW /v1/stats HTTP/1.1\r\n"), [400], "method"),
    "CONNECT": (b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n" + HIDDEN, [400], "CONNECT"),
    "no Host": (GET + CLOSE + b"\r\n", [400], "one Host"),
    "two Hosts": (get(HOST), [400], "one Host"),
    "a foreign Host second": (get(b"host: example.org\r\n"), [400], "one Host"),
    "a whole URL": (get(line=b"GET http://localhost/v1/stats HTTP/1.1\r\n"), [200], ""),
    "a whole URL elsewhere": (get(line=b"GET http://example.org/v1/stats HTTP/1.1\r\n"), [400], "Host"),
    "a whole URL elsewhere, its path here": (get(line=b"GET http://x@localhost/v1/stats HTTP/1.1\r\n"), [400], "Host"),
    "any resource": (get(line=b"OPTIONS * HTTP/1.1\r\n"), [404], ""),
    "no target": (get(line=b"GET  HTTP/1.1\r\n"), [400], "url"),
    "NUL in the target": (get(line=b"GET /v1/st\0ats HTTP/1.1\r\n"), [400], "url"),
    "bytes in the target": (get(line=b"GET /v1/st\xc3\xa4ts HTTP/1.1\r\n"), [400], "url"),
    "an escaped letter": (get(line=b"GET /v1/%73tats HTTP/1.1\r\n"), [200], ""),
    "an escaped NUL": (get(line=b"GET /v1/tenants/a%00b HTTP/1.1\r\n"), [422], "name"),
    "an escape of nothing": (get(line=b"GET /v1/tenants/%zz HTTP/1.1\r\n"), [422], "name"),
    "an escape that is no UTF-8": (get(line=b"GET /v1/tenants/%ff HTTP/1.1\r\n"), [422], "name"),
    "an escaped line end": (get(line=b"GET /nowhere%0d%0ax-smuggled:%201 HTTP/1.1\r\n"), [404], "nowhere"),
    "up and down again": (get(line=b"GET /v1/../v1/stats HTTP/1.1\r\n"), [404], ""),
    "a long query": (get(line=b"GET /v1/stats?" + b"a=b&" * 15_000 + b" HTTP/1.1\r\n"), [200], ""),
    "a query over the limit": (get(line=b"GET /v1/stats?" + b"a=b&" * 17_000 + b" HTTP/1.1\r\n"), [431], "65536"),
    # Headers
    "126 headers beside two": (get(b"x: y\r\n" * 126), [200], ""),
    "127 headers beside two": (get(b"x: y\r\n" * 127), [431], "128 headers"),
    "a folded header": (get(b"x-a: b\r\n c\r\n"), [400], "whitespace"),
    "a folded first header": (GET + b" x: y\r\n" + HOST + CLOSE + b"\r\n", [400], "space"),
    "NUL in a value": (get(b"x-a: b\0c\r\n"), [400], "header value"),
    "CR in a value": (get(b"x-a: b\rc\r\n"), [400], "header value"),
    "NUL in a name": (get(b"x\0a: b\r\n"), [400], "header"),
    "a space before the colon": (get(b"x-a : b\r\n"), [400], "header"),
    "no colon": (get(b"x-a\r\n"), [400], "header"),
    "no name": (get(b": x\r\n"), [400], "header"),
    "bare line feeds": (b"GET /v1/stats HTTP/1.1\nhost: localhost\n\n", [400], "CRLF"),
    "bytes in a value": (get(b"x-a: \xff\xfe\r\n"), [200], ""),
    "an id that is none": (get(b"x-request-id: \xff\r\n"), [200], ""),
    "empty lines first": (b"\r\n\r\n" + get(), [200], ""),
    "behind the last request": (get() + HIDDEN, [200], ""),
    # How long a body is
    "two lengths": (post(b"content-length: 2\r\ncontent-length: 3\r\n", b"{}"), [400], "Content-Length"),
    "one length twice": (post(b"content-length: 2\r\ncontent-length: 2\r\n", b"{}"), [400], "Content-Length"),
    "lengths in a list": (post(b"content-length: 2, 2\r\n", b"{}"), [400], "Content-Length"),
    "a length with a sign": (post(b"content-length: +2\r\n", b"{}"), [400], "Content-Length"),
    "a negative length": (post(b"content-length: -2\r\n", b"{}"), [400], "Content-Length"),
    "a length in hex": (post(b"content-length: 0x2\r\n", b"{}"), [400], "Content-Length"),
    "no length at all": (post(b"content-length: \r\n", b"{}"), [400], "Content-Length"),
    "a length over 64 bits": (post(b"content-length: 99999999999999999999\r\n", b"{}"), [400], "Content-Length"),
    "a length of 64 bits": (post(CLOSE + b"content-length: 18446744073709551615\r\n", b""), [413], "at most"),
    "a length and chunks": (post(b"content-length: 2\r\n" + CHUNKED, b"2\r\n{}\r\n0\r\n\r\n"), [400], "Content-Length"),
    "chunks and a length": (post(CHUNKED + b"content-length: 60\r\n", b"0\r\n\r\n"), [400], "Content-Length"),
    "chunks twice": (post(CHUNKED * 2, b"2\r\n{}\r\n0\r\n\r\n"), [400], "Transfer-Encoding"),
    "another coding": (post(b"transfer-encoding: gzip\r\n", b"{}"), [400], "Transfer-Encoding"),
    "a coding before chunks": (post(b"transfer-encoding: gzip, chunked\r\n", b"0\r\n\r\n"), [400], "Transfer-Encoding"),
    "a coding behind chunks": (post(b"transfer-encoding: chunked, gzip\r\n", b"0\r\n\r\n"), [400], "Transfer-Encoding"),
    "nearly chunks": (post(b"transfer-encoding: xchunked\r\n", b"0\r\n\r\n"), [400], "Transfer-Encoding"),
    "chunks behind a tab": (post(b"transfer-encoding: \x0bchunked\r\n", b"0\r\n\r\n"), [400], "header value"),
    "chunks in HTTP/1.0": (
        POST.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\r\n" + HIDDEN, [400], "HTTP/1.0",
    ),
    # Chunks
    "chunks": (post(CHUNKED, b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"), [422, 200], "layout"),
    "chunks in capitals": (post(b"TRANSFER-ENCODING: CHUNKED\r\n", b"2\r\n{}\r\n0\r\n\r\n"), [422, 200], "layout"),
    "a chunk with an extension": (post(CHUNKED, b"2;a=b\r\n{}\r\n0\r\n\r\n"), [422, 200], "layout"),
    "an endless extension": (post(CHUNKED, b"2;" + b"a" * 900_000), [431], "65536"),
    "a size that is no number": (post(CHUNKED, b"zz\r\n{}\r\n0\r\n\r\n"), [400], "chunk size"),
    "a size in another notation": (post(CHUNKED, b"0x2\r\n{}\r\n0\r\n\r\n"), [400], "chunk size"),
    "a size over 64 bits": (post(CHUNKED, b"f" * 17 + b"\r\n{}\r\n0\r\n\r\n"), [400], "hunk size"),
    "a negative size": (post(CHUNKED, b"-2\r\n{}\r\n0\r\n\r\n"), [400], "chunk size"),
    "a size with a line feed alone": (post(CHUNKED, b"2\n{}\r\n0\r\n\r\n"), [400], "chunk size"),
    "more than a chunk's size": (post(CHUNKED, b"2\r\n{}x\r\n0\r\n\r\n"), [400], "chunk data"),
    "a trailer": (post(CHUNKED, b"2\r\n{}\r\n0\r\n" + TRAILER + b"\r\n"), [422, 200], "layout"),
    "a length in a trailer": (post(CHUNKED, b"2\r\n{}\r\n0\r\ncontent-length: 9\r\n\r\n"), [400], "Content-Length"),
    "a trailer over the limit": (post(CHUNKED, b"2\r\n{}\r\n0\r\nx: " + b"t" * 900_000), [431], "65536"),
    "trailers over the limit": (post(CHUNKED, b"2\r\n{}\r\n0\r\n" + TRAILER * 9000), [431], "65536"),
    # Expectations and other protocols
    "who waits to be told": (post(b"content-length: 2\r\nexpect: 100-continue\r\n", b"{}"), [100, 422, 200], "layout"),
    "who waits with too much": (
        post(CLOSE + b"content-length: 5000000000\r\nexpect: 100-continue\r\n", b"", b""), [413], "at most",
    ),
    "who waits for something else": (post(b"content-length: 2\r\nexpect: x\r\n", b"{}"), [422, 200], "layout"),
    "HTTP/2 wished for": (GET + HOST + UPGRADE + b"\r\n" + HIDDEN, [200, 200], ""),
    "HTTP/2 wished for with a body": (post(UPGRADE + b"content-length: 2\r\n", b"{}"), [422, 200], "layout"),
    "HTTP/2 wished for with chunks": (post(UPGRADE + CHUNKED, b"2\r\n{}\r\n0\r\n\r\n"), [422, 200], "layout"),
    "HTTP/2 wished for around a request": (
        post(UPGRADE + b"content-length: %d\r\n" % len(HIDDEN), HIDDEN), [400, 200], "JSON",
    ),
    "HTTP/2 wished for in HTTP/1.0": (
        POST.replace(b"1.1", b"1.0") + UPGRADE + b"content-length: 2\r\n\r\n{}" + HIDDEN, [422], "layout",
    ),
    "a web socket": (GET + HOST + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n" + HIDDEN, [200, 200], ""),
    "a body where none belongs": (GET + HOST + b"content-length: 2\r\n\r\n{}" + HIDDEN, [200, 200], ""),
}  # fmt: skip
"""By name: what is sent on a connection of its own, the statuses of all answers, and a word of the first problem."""

HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r]*\r\n((?:[^\r]+\r\n)*)\r\n")


def answers(data):
    """Status, headers and body of every answer; all of `data` belongs to one."""
    found = []
    while data:
        start = HEAD.match(data)
        assert start, data[:200]
        lines = [line.split(b": ", 1) for line in start[2].splitlines()]
        headers = {name.decode().lower(): value.decode() for name, value in lines}
        end = start.end() + int(headers.get("content-length", 0))
        found.append((int(start[1]), headers, data[start.end() : end]))
        data = data[end:]
    return found


def exchange(service, *pieces):
    """Send them, end the sending, and read whatever comes until the service closes."""
    with connect(service) as sock:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                sock.sendall(piece)
        return answers(read_to_end(sock))


@pytest.mark.parametrize("name", ROWS)
def test_what_could_be_read_in_two_ways_is_read_in_one_or_refused(open_service, name):
    request, statuses, word = ROWS[name]
    found = exchange(open_service, request)
    if statuses == [431] and not found:
        return  # cut while it was still sending, and the answer was lost with it
    assert [status for status, _, _ in found] == statuses
    assert "x-smuggled" not in str([headers for _, headers, _ in found])
    problems = [(headers, json.loads(body)) for status, headers, body in found if status >= 400]
    for headers, problem in problems:
        assert headers["content-type"] == "application/problem+json"
        assert problem["request_id"] == headers["x-request-id"]
    assert not word or word in problems[0][1]["detail"]


@pytest.mark.parametrize("way", ["/v1/prefixes:lookup", "/nowhere"], ids=["read", "thrown away"])
@pytest.mark.parametrize("filler", [TRAILER * 1000, b"t" * 60_000], ids=["many", "one"])
def test_endless_trailers_are_cut_and_take_no_memory(open_service, way, filler):
    """No callback of the parser bounds them, nor does the pace of a body that has come whole."""
    memory = psutil.Process(open_service.pid).memory_info
    before, started = memory().rss, time.monotonic()
    with connect(open_service) as sock:
        sock.sendall(POST.replace(b"/v1/prefixes:lookup", way.encode()) + CHUNKED + b"\r\n2\r\n{}\r\n0\r\nx: ")
        with pytest.raises(ConnectionError):
            sock.sendall(filler * ((256 << 20) // len(filler)))
    assert time.monotonic() - started < 20, "by size, and not by the time that a body may take"
    assert memory().rss - before < 24 << 20


def test_requests_sent_at_once_are_answered_in_their_order(open_service):
    ids = [f"request-{number}" for number in range(300)]
    requests = [b"GET /healthz HTTP/1.1\r\n" + HOST + f"x-request-id: {each}\r\n\r\n".encode() for each in ids]
    found = exchange(open_service, b"".join(requests) + HIDDEN)
    assert [headers["x-request-id"] for _, headers, _ in found[:-1]] == ids
    assert {status for status, _, _ in found} == {200}


def test_records_in_chunks_of_one_byte_are_stored_whole(caller, open_service):
    document = layout_document()
    caller.register(document)
    keys = chain(document, 3)
    body = b"".join(chain_records(document, keys))
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    start = head("/v1/records:store", 0).replace(b"content-length: 0\r\n", CHUNKED)
    (status, _, answer), _ = exchange(open_service, start + chunks + b"0\r\n\r\n" + HIDDEN)
    assert (status, json.loads(answer)["stored"]) == (200, 3)
    assert caller.fetch(document, *[("history", key) for key in keys]).content == body


def test_records_of_who_wished_for_http_2_are_stored_whole(caller, open_service):
    """The head alone first, and a body large enough for a lane."""
    document = layout_document(history_bytes=600_000)
    caller.register(document)
    keys = chain(document, 4)
    body = b"".join(chain_records(document, keys))
    start = head("/v1/records:store", len(body)).replace(b"\r\n\r\n", b"\r\n" + UPGRADE + b"\r\n")
    with connect(open_service) as sock:
        sock.sendall(start)
        assert eventually(lambda: caller.metric("kvcairn_requests_in_flight") == 2)
        sock.sendall(body + HIDDEN)
        (status, _, answer), (behind, _, _) = answers(read_to_end(sock))
    assert (status, behind, json.loads(answer)["stored"]) == (200, 200, 4)
    assert caller.fetch(document, *[("history", key) for key in keys]).content == body
