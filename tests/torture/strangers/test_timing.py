"""Time tells nothing: asking for what another tenant has takes as long as asking for what nobody has.

Both questions are asked in turns, in an order that chance decides, over one connection; what is compared is their
ranks (the statistic of Mann and Whitney), so that the odd slow answer counts no more than any other. The same
comparison has to find the difference that there would be without a wall: a record that the caller has itself.
"""

import json
import random
import socket
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest

from service_caller import Caller
from service_samples import chain, chain_records, fingerprint, layout_document
from serving import ServiceProcess, running_service

SAMPLES = 3000
"""Of each question. Chance alone then moves the share by less than 0.03 in 999 of 1,000 runs."""

BLOCKS = 32

LEAST_SHARE = 0.06
"""How far from one half the share of pairs may be in which the first question took longer."""

ADMIN = "admin-secret-token"
SECRET = "A" * 43

pytestmark = pytest.mark.torture


class House(NamedTuple):
    """A service with two tenants, and what each of them has: one has `theirs`, the caller `own`, nobody `none`."""

    service: ServiceProcess
    token: str
    their_token_id: str
    document: dict[str, object]
    theirs: list[bytes]
    own: list[bytes]
    none: list[bytes]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    document = layout_document(history_bytes=4096)
    theirs, own, none = (chain(document, BLOCKS, seed=seed) for seed in (1, 2, 3))
    env = {"KVCAIRN_ADMIN_TOKEN": ADMIN, "KVCAIRN_SCRUB_BYTES_PER_SECOND": "0", "KVCAIRN_LOG_LEVEL": "error"}
    with running_service(tmp_path_factory.mktemp("timing") / "data", env=env) as service:
        made = {}
        with service.http(token=ADMIN) as admin:
            for name, keys in (("other", theirs), ("caller", own)):
                admin.put(f"/v1/tenants/{name}", json={})
                made[name] = admin.post(f"/v1/tenants/{name}/tokens").json()
                with service.http(token=made[name]["token"]) as http:
                    Caller(http).register(document)
                    assert Caller(http).store(b"".join(chain_records(document, keys))).json()["stored"] == BLOCKS
        yield House(service, made["caller"]["token"], made["other"]["id"], document, theirs, own, none)


def record(house: House, keys: list[bytes]) -> bytes:
    return request(house, "GET", Caller.path(house.document, "history", keys[3]))


def exists(house: House, keys: list[bytes]) -> bytes:
    return request(house, "POST", "/v1/records:exists", Caller.naming(house.document, *[("history", k) for k in keys]))


def fetch(house: House, keys: list[bytes]) -> bytes:
    return request(house, "POST", "/v1/records:fetch", Caller.naming(house.document, *[("history", k) for k in keys]))


def lookup(house: House, keys: list[bytes]) -> bytes:
    body = {"layout": fingerprint(house.document).hex(), "block_keys": [key.hex() for key in keys]}
    return request(house, "POST", "/v1/prefixes:lookup", body)


ASKED = (record, exists, fetch, lookup)
TELLING = (record, fetch)
"""Those whose work differs by much: what is found is read. A lookup's own difference of some microseconds is lost."""


@pytest.mark.parametrize("ask", ASKED)
def test_what_another_tenant_has_takes_as_long_as_what_nobody_has(
    house: House, ask: Callable[[House, list[bytes]], bytes]
) -> None:
    share = share_of_longer(house, ask(house, house.theirs), ask(house, house.none))
    assert abs(share - 0.5) < LEAST_SHARE, f"{share:.3f} of pairs"


@pytest.mark.parametrize("ask", TELLING)
def test_the_same_comparison_finds_what_there_would_be_without_a_wall(
    house: House, ask: Callable[[House, list[bytes]], bytes]
) -> None:
    share = share_of_longer(house, ask(house, house.own), ask(house, house.none))
    assert abs(share - 0.5) > LEAST_SHARE, f"{share:.3f} of pairs: this comparison could not have told"


def test_a_wrong_secret_of_a_token_that_there_is_takes_as_long_as_any_other(house: House) -> None:
    known, unknown = (f"kvc_{token_id}_{SECRET}" for token_id in (house.their_token_id, "0" * 12))
    asked = [request(house, "GET", "/v1/stats", token=token) for token in (known, unknown)]
    share = share_of_longer(house, *asked)
    assert abs(share - 0.5) < LEAST_SHARE, f"{share:.3f} of pairs"


def request(house: House, method: str, path: str, body: object = None, *, token: str | None = None) -> bytes:
    """One request as it goes over the wire: made beforehand, so that making it takes no part."""
    content = b"" if body is None else json.dumps(body).encode()
    return (
        f"{method} {path} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {token or house.token}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    ).encode() + content


def share_of_longer(house: House, first: bytes, second: bytes) -> float:
    """Of all pairs of an answer to each, the share in which the first took longer; a half where time tells nothing."""
    order = [0, 1] * SAMPLES
    random.Random(0).shuffle(order)
    with asking(house.service) as sock:
        for each in (first, second) * 50:
            answer_seconds(sock, each)
        seconds = np.array([answer_seconds(sock, (first, second)[which]) for which in order])
    ranks = np.empty(len(seconds))
    ranks[np.argsort(seconds, kind="stable")] = np.arange(len(seconds))
    of_first = ranks[np.array(order) == 0]
    return float((of_first.sum() - SAMPLES * (SAMPLES - 1) / 2) / SAMPLES**2)


def asking(service: ServiceProcess) -> socket.socket:
    host, port = service.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def answer_seconds(sock: socket.socket, asked: bytes) -> float:
    """From the request's first byte to the answer's last one."""
    started = time.perf_counter()
    sock.sendall(asked)
    answer = sock.recv(1 << 20)
    while (head := answer.find(b"\r\n\r\n")) < 0:
        answer += sock.recv(1 << 20)
    length = int(answer[:head].lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(answer) < head + 4 + length:
        answer += sock.recv(1 << 20)
    return time.perf_counter() - started
