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


def test_a_new_file_makes_a_part_due_before_it_is_committed(checkout):
    acceptance._run(["toy"])
    (checkout / "product" / "new.py").write_text("1")
    assert "product/new.py" in due()


def test_a_part_that_failed_stays_due_and_ends_with_an_error(checkout, monkeypatch):
    part = Part("toy", (("true",), ("false",), ("touch", "after")), ("product",), 1)
    monkeypatch.setitem(PARTS, "toy", part)
    assert acceptance._run(["toy"]) == 1
    assert due().startswith("has not passed")
    assert last(checkout)["failed"] == "false"
    assert not (checkout / "after").exists()


def test_what_passed_with_uncommitted_changes_is_recorded_and_stays_due(checkout):
    (checkout / "product" / "code.py").write_text("2")
    assert acceptance._run(["toy"]) == 0
    assert last(checkout)["result"] == "passed"
    assert due().startswith("has not passed")


def test_what_a_part_writes_itself_is_no_uncommitted_change(checkout, monkeypatch):
    part = Part("toy", (("sh", "-c", "echo 2 > other.py"),), ("product",), 1)
    monkeypatch.setitem(PARTS, "toy", part)
    acceptance._run(["toy"])
    assert due() == ""


def test_a_record_of_a_commit_that_is_not_here_leaves_its_part_due(checkout):
    acceptance._run(["toy"])
    record = last(checkout) | {"commit": "0" * 40}
    records.ACCEPTANCE.write_text(json.dumps(record) + "\n")
    assert "not here" in due()


def test_an_unknown_part_is_refused_with_the_names_of_those_that_there_are(checkout, capsys):
    assert acceptance._run(["kafak"]) == 2
    assert "kafka" in capsys.readouterr().err
    assert not records.ACCEPTANCE.exists()


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
