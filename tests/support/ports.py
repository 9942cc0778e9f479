"""Ports for a test's processes, which are no other test's while this process lives."""

import fcntl
import os
import random
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

_LOCKS = Path(tempfile.gettempdir()) / f"kairos-test-ports-{os.getuid()}"
_held = []  # the locks: a server that is down for a moment does not lose its port


def free_ports(count):
    """Ports that nothing listened on a moment ago, all different.

    From below those that outgoing connections get: a client that tries to reach a port of its own
    range where nothing listens can end up connected to itself, and then holds the port.
    """
    _LOCKS.mkdir(exist_ok=True)
    ports = []
    while len(ports) < count:
        port = random.randrange(15_000, 32_000)
        if _is_ours(port) and _is_free(port):
            ports.append(port)
    return ports


def _is_ours(port):
    """From now on, unless it is another test's, or this process had it before."""
    lock = os.open(_LOCKS / str(port), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    _held.append(lock)
    return True


def _is_free(port):
    with suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False
