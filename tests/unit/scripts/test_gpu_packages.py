"""Packages for a machine without a network: what is cut, carried, and put together again."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts import gpu_packages as packages

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
PART_BYTES = 20_000
CHECK = "import carried, pytest; assert carried.WORD == 'there'; print(pytest.__file__)"


@pytest.fixture
def tree(tmp_path):
    """What was installed for the other machine: more than a part, which compresses badly."""
    tree = tmp_path / "tree"
    (tree / "carried").mkdir(parents=True)
    (tree / "carried" / "__init__.py").write_text("WORD = 'there'\n")
    (tree / "carried" / "kernels.so").write_bytes(os.urandom(2 * PART_BYTES + PART_BYTES // 2))
    return tree


@pytest.fixture
def parts(tmp_path, tree):
    """The directory of parts."""
    directory = tmp_path / "parts"
    directory.mkdir()
    packages.pack(tree, tmp_path / "archive")
    made = list(packages.cut(tmp_path / "archive", directory, PART_BYTES))
    packages.Manifest("this lock", HERE, made).write(directory)
    return directory


def carry(parts, there, *names):
    """Only these, in place of whatever was carried before."""
    there.mkdir(exist_ok=True)
    for old in there.iterdir():
        old.unlink()
    for name in (packages.MANIFEST, *names):
        (there / name).write_bytes((parts / name).read_bytes())
    return there


@given(content=st.binary(max_size=200), part_bytes=st.integers(1, 100))
def test_parts_are_no_larger_than_asked_for_and_join_to_the_same_bytes(
    content, part_bytes, tmp_path_factory
):
    directory = tmp_path_factory.mktemp("cut")
    (directory / "archive").write_bytes(content)
    made = list(packages.cut(directory / "archive", directory, part_bytes))
    assert all(0 < each.size <= part_bytes for each in made)
    packages.join([directory / each.name for each in made], directory / "joined")
    assert (directory / "joined").read_bytes() == content


def test_a_part_with_other_bytes_is_missing(parts):
    manifest = packages.Manifest.read(parts)
    assert [each.name for each in manifest.parts] == ["part-01", "part-02", "part-03"]
    assert packages.missing(manifest, parts) == []
    (parts / "part-01").unlink()
    damaged = bytearray((parts / "part-02").read_bytes())
    damaged[-1] ^= 1
    (parts / "part-02").write_bytes(damaged)
    assert packages.missing(manifest, parts) == ["part-01", "part-02"]


def test_parts_that_come_one_by_one_become_an_environment_beside_this_one(parts, tmp_path, capfd):
    there, into = tmp_path / "there", tmp_path / "into"
    for names, missing in ((["part-02"], "'part-01', 'part-03'"), (["part-03"], "'part-01'")):
        with pytest.raises(SystemExit, match=rf"still to come: \[{missing}\]"):
            packages.install(carry(parts, there, *names), into, CHECK)
    packages.install(carry(parts, there, "part-01"), into, CHECK)
    assert pytest.__file__ in capfd.readouterr().out, "it does not see what is installed here"

    python = into / "venv" / "bin" / "python"
    path = [sys.executable, "-c", "import carried"]
    assert subprocess.run(path, check=False, capture_output=True).returncode == 1
    assert subprocess.run([python, "-P", "-c", CHECK], check=False).returncode == 0


def test_what_does_not_run_there_is_not_taken_for_whole(parts, tmp_path):
    for _ in range(2):
        with pytest.raises(SystemExit, match="cannot run on this machine"):
            packages.install(parts, tmp_path / "into", "import no_such_package")


def test_the_list_and_the_lock_name_the_same_packages():
    listed = {
        line
        for line in (packages.CHECKOUT / "scripts" / "gpu-packages.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    locked = {
        line.removesuffix(" \\")
        for line in packages.LOCK.read_text().splitlines()
        if line[0] not in "# "
    }
    assert listed == locked
    assert "vllm==0.26.0" in listed
