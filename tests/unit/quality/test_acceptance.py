import json
import subprocess

import pytest

from quality import acceptance, records
from quality.acceptance import PARTS, Part


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    command = ["git", *identity, *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with one part, whose code is the folder `product`."""
    (tmp_path / "product").mkdir()
    (tmp_path / "product" / "code.py").write_text("1")
    (tmp_path / "other.py").write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    monkeypatch.setattr(records, "ROOT", tmp_path)
    monkeypatch.setattr(records, "ACCEPTANCE", tmp_path / records.FOLDER / "acceptance.jsonl")
    monkeypatch.setitem(PARTS, "toy", Part("toy", (("true",),), ("product",), 1))
    return tmp_path


def last(checkout):
    return json.loads(records.ACCEPTANCE.read_text().splitlines()[-1])


def due():
    return acceptance.reason("toy", records.ACCEPTANCE)


def test_a_part_is_due_until_it_has_passed_on_the_code_that_is_there(checkout):
    assert due() == "never run"

    assert acceptance._run(["toy"]) == 0
    assert due() == ""
    assert last(checkout)["commit"] == git(checkout, "rev-parse", "HEAD")

    (checkout / "other.py").write_text("2")
    git(checkout, "commit", "-qam", "not of the part")
    assert due() == ""

    (checkout / "product" / "code.py").write_text("2")
    assert "product/code.py" in due()  # before the commit, too
    git(checkout, "commit", "-qam", "of the part")
    assert "product/code.py" in due()

    (checkout / "product" / "code.py").write_text("1")
    git(checkout, "commit", "-qam", "back")
    assert due() == ""


def test_a_part_that_failed_stays_due_and_ends_with_an_error(checkout, monkeypatch):
    part = Part("toy", (("true",), ("false",), ("touch", "after")), ("product",), 1)
    monkeypatch.setitem(PARTS, "toy", part)
    assert acceptance._run(["toy"]) == 1
    assert due().startswith("has not passed")
    assert last(checkout)["failed"] == "false"
    assert not (checkout / "after").exists()


@pytest.mark.parametrize("name", PARTS)
def test_the_code_of_every_part_is_there(name):
    assert [path for path in PARTS[name].code if not (records.ROOT / path).exists()] == []


@pytest.mark.parametrize("name", PARTS)
def test_every_command_of_a_part_is_a_target_and_within_forty_minutes(name):
    targets = (records.ROOT / "Makefile").read_text()
    for make, target, *_ in PARTS[name].commands:
        assert make == "make"
        assert f"\n{target}: " in targets or f" {target}: " in targets
    assert PARTS[name].minutes <= acceptance.LIMIT_MINUTES
