"""Writes messages to a NATS server through a bare socket: `python -m ... HOST PORT SUBJECT`.

A client library would be the limit here.
"""

from __future__ import annotations

import socket
import sys

from ruststream_core_bench._feeding import STEP, allowances
from ruststream_core_bench._payload import BODY

__all__ = ["main"]


def main(host: str, port: str, subject: str) -> None:
    """Run until no more is wanted."""
    with socket.create_connection((host, int(port)), timeout=30) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _expect(link, b"INFO")
        link.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nPING\r\n')
        _expect(link, b"PONG")
        block = b"PUB %s %d\r\n%s\r\n" % (subject.encode(), len(BODY), BODY) * STEP
        for _ in allowances():
            link.sendall(block)
        link.sendall(b"PING\r\n")
        _expect(link, b"PONG")


def _expect(link: socket.socket, word: bytes) -> None:
    said = b""
    while word not in said or not said.endswith(b"\r\n"):
        said += (more := link.recv(65536))
        if not more or b"-ERR" in said:
            sys.exit(f"the server said {said[-200:]!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
