"""Requests by hand, for clients that stall, vanish or trickle; and waiting for what must come true."""

import socket
import time

from service_samples import RECORDS


def connect(service, *, buffer_bytes=None):
    """A connection; its kernel takes data in steps of about half its buffer's size."""
    host, port = service.url.removeprefix("http://").split(":")
    sock = socket.socket()
    sock.settimeout(30)
    if buffer_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    sock.connect((host, int(port)))
    return sock


def head(path, length, content_type=RECORDS):
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


def read_to_end(sock):
    """Everything until the peer closes or cuts."""
    parts = []
    try:
        while part := sock.recv(1 << 20):
            parts.append(part)
    except ConnectionResetError:
        parts.append(b"")
    return b"".join(parts)


def eventually(condition):
    """Whether the condition comes true; bounded, and quick where it does."""
    for _ in range(1000):
        if condition():
            return True
        time.sleep(0.01)
    return False
