"""`kairos keys` as people and scripts run it: what is on which stream, and what it exits with."""

import os
import re
import resource
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kairos.cli.main import app
from kairos.core import SetupError
from kairos.settings import read_keys

IN_FORCE = "kairos: to put it in force, send SIGHUP to each process that reads the file\n"
STOPPED = """
import os, signal, sys
from kairos.host import files
from kairos.cli.main import main

def fsync(_):
    os.kill(os.getpid(), signal.SIGINT)

files.os.fsync = fsync
# What a shell starts in the background ignores Ctrl-C, and so do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def path(here):
    return here / "keys.toml"


def run(*arguments):
    result = CliRunner().invoke(app, ["keys", *arguments], catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_the_key_alone_is_on_standard_output(path):
    out, told = run("create", "--tenant", "acme", "--name", "ci", "keys.toml")
    assert re.fullmatch(r"kai-[A-Za-z0-9_-]{43}\n", out)
    assert told == (
        "kairos: 'ci' of tenant 'acme' is in keys.toml\n"
        "kairos: keep what was printed: it is stored nowhere\n" + IN_FORCE
    )
    (key,) = read_keys(path)
    assert key.sha256 == sha256(out.strip().encode()).hexdigest()


def test_options_of_a_new_key(path):
    _, told = run(
        *("create", "--tenant", "acme", "--app", "qa", "--expires", "2099-01-31", "keys.toml")
    )
    (key,) = read_keys(path)
    assert told.startswith(
        f"kairos: '{key.sha256[:8]}' of tenant 'acme' is in keys.toml, until 2099-01-31T00:00:00Z\n"
    )
    assert key.app == "qa"


def test_a_list_has_no_digest_in_full_and_no_key(path):
    secret, _ = run("create", "--tenant", "acme", "--name", "ci", "keys.toml")
    out, told = run("list", "keys.toml")
    assert told == ""
    (key,) = read_keys(path)
    assert out.splitlines()[1].split() == [
        *("ci", "acme", "any", "caller", key.created.isoformat().replace("+00:00", "Z")),
        *("never", "active", key.sha256[:8]),
    ]
    assert key.sha256[:9] not in out
    assert secret.strip() not in out


def test_a_key_is_revoked(path):
    run("create", "--tenant", "acme", "--name", "ci", "keys.toml")
    assert run("revoke", "ci", "keys.toml") == (
        "",
        "kairos: 'ci' of tenant 'acme' is no longer in keys.toml\n" + IN_FORCE,
    )
    assert read_keys(path) == ()


def test_a_key_is_rotated(path):
    before, _ = run("create", "--tenant", "acme", "--name", "ci", "keys.toml")
    after, told = run("rotate", "ci", "keys.toml", "--grace", "2h", "--expires", "2099-01-31")
    assert re.fullmatch(r"kai-[A-Za-z0-9_-]{43}\n", after)
    assert after != before
    new, old = read_keys(path)
    assert told == (
        "kairos: 'ci' of tenant 'acme' is another key now, until 2099-01-31T00:00:00Z\n"
        f"kairos: the old one is called '{old.sha256[:8]}', and expires "
        f"{old.expires.isoformat().replace('+00:00', 'Z')}\n"
        "kairos: keep what was printed: it is stored nowhere\n" + IN_FORCE
    )
    assert [sha256(each.strip().encode()).hexdigest() for each in (after, before)] == [
        *(new.sha256, old.sha256)
    ]


def test_what_is_wrong_is_said(path):
    with pytest.raises(SetupError, match=r"^keys\.toml: there is no such file of keys"):
        run("list", "keys.toml")
    with pytest.raises(SetupError, match=r"^'a b' is not a valid tenant name"):
        run("create", "--tenant", "a b", "keys.toml")
    assert not path.exists()


def process(*arguments, program=("-m", "kairos.cli.main"), stdout=subprocess.PIPE, before=None):
    return subprocess.run(
        [sys.executable, *program, "keys", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        preexec_fn=before,
        check=False,
    )


def test_a_key_that_cannot_be_printed_is_not_kept(path):
    run("create", "--tenant", "acme", "--name", "ci", "keys.toml")
    before = path.read_bytes()
    with Path("/dev/full").open("w") as full:
        done = process("create", "--tenant", "acme", "keys.toml", stdout=full)
    assert done.returncode != 0
    assert b"the key cannot be printed (No space left on device), so nothing" in done.stderr
    done = process("rotate", "ci", "keys.toml", stdout=None, before=lambda: os.close(1))
    assert done.returncode == 1
    assert done.stderr == (
        b"kairos: the key cannot be printed (standard output is closed), so nothing was changed\n"
    )
    assert path.read_bytes() == before


def test_a_key_for_which_there_is_no_room_is_not_printed(path):
    run("create", "--tenant", "acme", "--name", "ci", "keys.toml")
    before = path.read_bytes()
    room = len(before), len(before)
    done = process(
        *("create", "--tenant", "acme", "keys.toml"),
        before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, room),
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"keys.toml: File too large" in done.stderr
    assert path.read_bytes() == before


def test_stopped_by_ctrl_c_it_leaves_the_file_as_it_was(path):
    run("create", "--tenant", "acme", "--name", "ci", "keys.toml")
    before = path.read_bytes()
    for arguments in (("create", "--tenant", "b"), ("revoke", "ci"), ("rotate", "ci")):
        done = process(*arguments, "keys.toml", program=("-c", STOPPED))
        assert done.returncode in (130, -signal.SIGINT), done.stderr
        assert path.read_bytes() == before
        assert {each.name for each in path.parent.iterdir()} == {"keys.toml", ".keys.toml.lock"}
