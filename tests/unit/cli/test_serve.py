"""`kairos serve`: what it refuses, and what its workers are given, before anything is served."""

import os

import pytest
from typer.testing import CliRunner

from kairos.cli import serve
from kairos.cli.main import app
from kairos.core import SetupError

ENGINE = ("--engine", "http://127.0.0.1:1")
THREADS = "OPENBLAS_NUM_THREADS"


@pytest.fixture
def started(monkeypatch):
    """Return the name of the call that would serve, and the threads that NumPy would have."""
    monkeypatch.delenv("KAIROS_ENGINE", raising=False)
    found = []

    def standing_in(name):
        async def take(settings, load):
            found.append((name, os.environ.get(THREADS)))

        monkeypatch.setattr(serve, name, take)

    standing_in("_serve")
    standing_in("_supervise")

    def start(*options):
        done = CliRunner().invoke(app, ["serve", *options])
        if done.exception is not None:
            raise done.exception
        return found.pop()

    return start


def test_without_an_engine_it_says_how_to_name_one(started):
    message = "name at least one engine: kairos serve --engine http://HOST:PORT"
    with pytest.raises(SetupError, match=message):
        started()


def test_a_worker_computes_in_one_thread_unless_somebody_says_otherwise(started, monkeypatch):
    """NumPy takes no core from the other workers."""
    monkeypatch.setenv(THREADS, "3")
    assert started(*ENGINE, "--workers", "2") == ("_supervise", "3")
    monkeypatch.delenv(THREADS)
    assert started(*ENGINE) == ("_serve", None)
    assert started(*ENGINE, "--workers", "2") == ("_supervise", "1")
