"""What comes behind a request that is being answered, and is no request: it never ends up in that answer."""

import json
import socket
import time

import pytest

from service_caller import Caller
from service_samples import chain, chain_records, fingerprint, layout_document
from sockets import connect, eventually, head, read_to_end

BAD = [
    pytest.param(b"\0\1 no HTTP\r\n\r\n", id="garbage"),
    pytest.param(b"GET /healthz HTTP/1.1\r\nx: " + b"a" * (70 << 10), id="head-too-large"),
]
COUNT = 20


@pytest.fixture
def stored(caller):
    """Twenty records of 2 MiB, more than the socket buffers on the way hold: the request for all, and its answer."""
    document = layout_document(history_bytes=2 << 20)
    caller.register(document)
    keys = chain(document, COUNT)
    records = chain_records(document, keys)
    for start in range(0, COUNT, 10):
        assert caller.store(b"".join(records[start : start + 10])).json()["stored"] == 10
    asked = json.dumps(Caller.naming(document, *[("history", key) for key in keys])).encode()
    yield head("/v1/records:fetch", len(asked), "application/json") + asked, b"".join(records)
    caller.http.delete(f"/v1/layouts/{fingerprint(document).hex()}")


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("is_late", [False, True], ids=["at-once", "in-the-middle"])
def test_a_bad_request_behind_a_fetch_waits_for_its_end_and_then_the_connection_is_closed(
    open_service, caller, stored, bad, is_late
):
    request, whole = stored
    with connect(open_service, buffer_bytes=64 << 10) as sock:
        sock.sendall(request + (b"" if is_late else bad))
        if is_late:
            answer = sock.recv(4096)
            sock.sendall(bad)
            time.sleep(0.1)  # so that it is read while the answer is under way
        else:
            answer = b""
        start, _, body = (answer + read_to_end(sock)).partition(b"\r\n\r\n")
    assert start.startswith(b"HTTP/1.1 200 ")
    assert body == whole
    assert caller.http.get("/healthz").status_code == 200


def test_a_client_that_leaves_with_answers_due_is_no_error(open_service, caller, stored):
    """uvicorn tells the last of several requests alone that the connection is lost; the one under way finds out."""
    request, _ = stored
    before = open_service.log().count("Traceback")
    for turn in range(40):
        with connect(open_service, buffer_bytes=64 << 10) as sock:
            sock.sendall(request * 2)
            sock.recv(1 << 10)
            time.sleep(turn % 8 * 0.002)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    assert eventually(lambda: caller.metric("kvcairn_held_records") == 0)
    assert open_service.log().count("Traceback") == before
    assert "ASGI callable returned" not in open_service.log()
