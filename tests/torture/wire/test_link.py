"""The faulty link does what it says: each fault, each way, over TCP and Unix sockets, at its byte and nowhere else."""

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from faulty_link import FaultyLink
from link_faults import KINDS, LinkFault, Way, drawn, steps

SENT = bytes(range(256)) * 40
AT_BYTE, AMOUNT = 10_230, 7

CAME = {
    "flip": SENT[:AT_BYTE] + bytes([SENT[AT_BYTE] ^ 1 << AMOUNT % 8]) + SENT[AT_BYTE + 1 :],
    "drop": SENT[:AT_BYTE] + SENT[AT_BYTE + AMOUNT :],
    "duplicate": SENT[: AT_BYTE + AMOUNT] + SENT[AT_BYTE:],
    "delay": SENT,
    "drip": SENT,
    "stall": SENT[:AT_BYTE],
    "cut": SENT[:AT_BYTE],
    "reset": SENT[:AT_BYTE],
    "half close": SENT[:AT_BYTE],
}
"""What comes out of the other end of a link, in order."""


@contextmanager
def linked(fault: LinkFault, socket_path: Path | None) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a connection over a link with this fault: the client's, and the service's."""
    family = socket.AF_UNIX if socket_path else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind(f"{socket_path}.target" if socket_path else ("127.0.0.1", 0))
        listener.listen()
        name = listener.getsockname()
        target = f"unix:{name}" if socket_path else f"http://127.0.0.1:{name[1]}"
        with FaultyLink(target, iter([fault]), socket_path=socket_path) as link, socket.socket(family) as client:
            client.connect(str(socket_path) if socket_path else ("127.0.0.1", int(link.url.rpartition(":")[2])))
            service, _ = listener.accept()
            with closing(service):
                for end in (client, service):
                    end.settimeout(20)
                yield client, service


def received(end: socket.socket, size_bytes: int) -> bytes:
    """So many bytes, or as many as come before the end; a reset raises."""
    data = b""
    while len(data) < size_bytes and (piece := end.recv(size_bytes - len(data))):
        data += piece
    return data


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("is_unix", [False, True], ids=["tcp", "unix"])
def test_each_fault_spoils_its_way_alone_and_as_it_says(kind: str, way: Way, tmp_path: Path, is_unix) -> None:
    with linked(LinkFault(kind, way, AT_BYTE, AMOUNT), tmp_path / "s" if is_unix else None) as (client, service):
        one, other = (client, service) if way is Way.UP else (service, client)
        other.sendall(b"back")
        assert received(one, 4) == b"back"
        one.sendall(SENT)
        assert received(other, len(CAME[kind])) == CAME[kind]
        if kind == "stall":
            other.settimeout(0.05)
            with pytest.raises(TimeoutError):
                other.recv(1)
        elif kind == "cut":
            assert other.recv(1) == one.recv(1) == b""
        elif kind == "reset":
            check_is_reset(one, other, is_unix)
        else:
            if kind == "half close":
                assert other.recv(1) == b""
            other.sendall(b"again")
            assert received(one, 5) == b"again"


def check_is_reset(one: socket.socket, other: socket.socket, is_unix) -> None:
    if is_unix:  # which knows no RST: the end is all that there is to see
        assert other.recv(1) == one.recv(1) == b""
        return
    for end in (one, other):
        with pytest.raises(ConnectionResetError):
            end.recv(1)


@pytest.mark.parametrize("kind", ["flip", "delay", "cut"])
@pytest.mark.parametrize("piece_bytes", [1, 17, 10_229, 10_230, 10_231, 65_536])
def test_a_fault_begins_at_its_byte_however_the_stream_is_cut(kind: str, piece_bytes: int) -> None:
    fault, came = LinkFault(kind, Way.UP, AT_BYTE, AMOUNT), b""
    for at in range(0, len(SENT), piece_bytes):
        done = list(steps(fault, at, SENT[at : at + piece_bytes]))
        came += b"".join(step for step in done if isinstance(step, bytes))
    assert came == CAME[kind]


def test_a_seed_draws_the_same_faults_again_and_all_of_them() -> None:
    one, same = (drawn(7, reach_bytes=1 << 20) for _ in range(2))
    faults = [next(one) for _ in range(1000)]
    assert faults == [next(same) for _ in range(1000)]
    assert {(fault.kind, fault.way) for fault in faults} == {(kind, way) for kind in KINDS for way in Way}
    assert max(fault.at_byte for fault in faults) < 1 << 21
