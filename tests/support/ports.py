"""Ports for a test's processes, which are no other test's while this process lives."""

import fcntl
import random
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

_LOCKS = Path(tempfile.gettempdir()) / "kairos-test-ports"
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
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            lock = (_LOCKS / str(port)).open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another test's, or given out by this process before
                lock.close()
                continue
            _held.append(lock)
            ports.append(port)
    return ports
