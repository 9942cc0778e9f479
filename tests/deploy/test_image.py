"""The Dockerfile, without Docker: what it copies is there, and is enough."""

import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from tests.deploy.files import DEPLOY, ROOT, compose

DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
RUNTIME = "requirements-runtime.lock"
# From the build's context, so not `COPY --from`.
COPIED = [source for source, _ in re.findall(r"^COPY ([\w.-]+) (\S+)$", DOCKERFILE, re.M)]


def versions(lock):
    """Of each package all that are pinned: which one is taken can depend on the Python."""
    pins = re.findall(r"^([a-z0-9-]+)==(.+?) *\\?$", (ROOT / lock).read_text(), re.M)
    return {name: {version for each, version in pins if each == name} for name, _ in pins}


def test_what_it_is_made_from_has_a_version_and_it_does_not_run_as_root():
    bases = set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.M))
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.M))
    assert bases - stages == {"python:3.11.14-slim-bookworm"}
    assert re.findall(r"^USER (\S+)$", DOCKERFILE, re.M) == ["10001:10001"]
    assert {each["user"] for each in compose()["services"].values() if "build" in each} == {
        "10001:10001"
    }


def test_the_lowest_versions_that_are_tested_are_those_that_are_allowed():
    allowed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    floors = dict(each.partition(";")[0].strip().split(">=") for each in allowed)
    pinned = versions("requirements-floors.lock")

    for name, floor in floors.items():
        (version,) = pinned[name]
        found, parts = version.split(" ")[0].split("."), floor.split(".")
        assert found[: len(parts)] == parts, name
        assert {*found[len(parts) :]} <= {"0", "1"}, name  # the first that there is


def test_packages_are_those_of_the_lock_file_with_their_hashes():
    assert DOCKERFILE.count("--require-hashes") == DOCKERFILE.count(" install --no-cache-dir ")
    runtime, whole = versions(RUNTIME), versions("requirements.lock")
    for lock in (runtime, versions("requirements-compile.lock")):
        assert lock
        assert {name: whole.get(name) for name in lock} == lock


def test_the_packages_are_all_that_kairos_needs_and_nothing_that_only_its_tests_do():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    runtime = versions(RUNTIME)
    needed = {re.split(r"[>=;\[ ]", each)[0] for each in project["dependencies"]}
    extra = {
        re.split(r"[>=;\[ ]", each)[0]
        for group in project["optional-dependencies"].values()
        for each in group
    }
    assert needed <= set(runtime)
    assert not (extra - needed) & set(runtime)


def test_the_build_sees_what_it_copies_and_nothing_else():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    shown = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert all((ROOT / each).exists() for each in shown)
    assert {each.partition("/")[0] for each in shown} == set(COPIED)


@pytest.fixture
def image(tmp_path):
    """The image's /app: what .dockerignore shows, copied."""
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            source, target = ROOT / line[1:], tmp_path / line[1:]
            target.parent.mkdir(exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
    return tmp_path


def test_the_command_and_the_agents_work_from_what_is_copied(image):
    written = re.search(r"printf '%s\\n' (.*?) *\\\n", DOCKERFILE)[1]
    _, *program = re.findall(r"'([^']*)'", written)
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "import agents.qa, agents.rg, agents.cg, agents.evaluation, kairos, sys\n"
            "print(agents.qa.__file__, kairos.__file__)\n"
            "sys.argv = ['kairos', '--version']\n" + "\n".join(program),
        ],
        cwd=image,
        env={"PYTHONPATH": str(image)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    paths, version = said.stdout.splitlines()
    assert all(path.startswith(str(image)) for path in paths.split())
    assert version.startswith("kairos ")
    service = compose()["services"]["standin-1"]
    for word in service["command"]:
        name, _, value = word.partition("=")
        if name in ("--script", "--lengths"):
            assert (image / value).is_file()
