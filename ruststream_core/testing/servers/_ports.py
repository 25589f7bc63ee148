"""Ports that are free at this moment."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

__all__ = ["LOOPBACK", "free_ports"]

LOOPBACK = "127.0.0.1"
_FIRST = 15_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int = 1) -> tuple[int, ...]:
    """Choose distinct TCP ports on the loopback address that nobody listens on.

    Nothing keeps another process from taking one before the caller does, so the caller tries again when that happens.

    Args:
        count: How many.

    Returns:
        The ports, below the range from which the kernel serves outgoing connections where there is room.
    """
    # Inside that range a client which keeps connecting to a stopped server can be given the very port it dials as
    # its own: TCP then connects it to itself, and the server finds its port taken when it comes back.
    with ExitStack() as held:
        return tuple(_hold(held) for _ in range(count))


def _hold(held: ExitStack) -> int:
    last = _first_ephemeral() - 1
    while True:
        candidate = random.randint(_FIRST, last) if last > _FIRST else 0  # noqa: S311 - not a secret
        sock = socket.socket()
        held.callback(sock.close)
        try:
            sock.bind((LOOPBACK, candidate))
        except OSError:
            continue
        port: int = sock.getsockname()[1]
        return port


def _first_ephemeral() -> int:
    try:
        return int(_EPHEMERAL.read_text().split()[0])
    except OSError:
        return 32_768
