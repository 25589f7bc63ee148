"""The other process: writes messages to a NATS server through a bare socket, as many as it is allowed to.

`python -m ruststream_core_bench._producer HOST PORT SUBJECT STEP`. It says `ready` when it is connected. Each byte on
standard input allows STEP messages more; the end of the input ends it. A client library would be the limit here, and
without the allowance the reader's backlog, which no loop is about.
"""

from __future__ import annotations

import socket
import sys

from ruststream_core_bench._payload import BODY

__all__ = ["main"]


def main(host: str, port: str, subject: str, step: str) -> None:
    """Run until the input ends."""
    with socket.create_connection((host, int(port)), timeout=30) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _expect(link, b"INFO")
        link.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nPING\r\n')
        _expect(link, b"PONG")
        print("ready", flush=True)
        one = b"PUB %s %d\r\n%s\r\n" % (subject.encode(), len(BODY), BODY)
        block = one * int(step)
        allowed = sys.stdin.buffer.raw  # type: ignore[attr-defined]  # a buffered reader has it, its type does not say so
        while credits := allowed.read(1024):
            for _ in credits:
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
