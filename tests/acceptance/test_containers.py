"""Generated code in a real container, with the user, limits and profile that deploy/ gives agents.

The container's files are this machine's, read-only, and not the image's: what is tried is what the
kernel and the runtime let through. It needs podman, runc and root.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "deploy" / "docker-compose.yml").read_text()
CONFIGURATION = """
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
log_driver = "k8s-file"
default_ulimits = ["nofile=8192:8192", "nproc=4096:4096"]
"""


@pytest.fixture
def here():
    """A directory whose name is short, as podman demands."""
    with tempfile.TemporaryDirectory(prefix="kairos-", ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.fixture
def run(here):
    """Run a command of this Python in a container as Compose has it."""
    if shutil.which("podman") is None or os.geteuid():
        pytest.skip("podman must be installed, and this be root")
    (here / "containers.conf").write_text(CONFIGURATION)
    files = here / "files"
    for name in ("usr", "etc", "tmp", "proc", "sys", "dev", "run", "app"):
        (files / name).mkdir(parents=True)
    (files / "tmp").chmod(0o1777)
    for name in ("bin", "lib", "lib64", "sbin"):
        (files / name).symlink_to(f"usr/{name}")

    def run(*command):
        of_compose = (
            *("--user", _said("user"), "--read-only", "--memory", _said("mem_limit")),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--pids-limit", _said("pids_limit"), "--tmpfs", "/tmp:size=64m,mode=1777"),
        )
        mounts = [f"-v{path}:{where}:ro" for path, where in (("/usr", "/usr"), ("/etc", "/etc"))]
        podman = (
            *("podman", "--root", here / "root", "--runroot", here / "run"),
            *("run", "--rm", "--network", "none", *of_compose, *mounts, f"-v{ROOT}:/app:ro"),
            *("-w", "/app", "-e", "KAIROS_AGENTS=/app", "--rootfs", files),
        )
        environ = os.environ | {"CONTAINERS_CONF": str(here / "containers.conf")}
        inside = Path("/app") / Path(sys.executable).relative_to(ROOT)
        return subprocess.run(
            [str(each) for each in (*podman, inside, *command)],
            capture_output=True,
            text=True,
            env=environ,
            check=False,
        )

    return run


def _said(name):
    """Return what Compose says first of that name."""
    return re.search(rf"^ +{name}: \"?([^\"\n]+)", COMPOSE, re.MULTILINE)[1]


@pytest.mark.parametrize("options", [(), ("--without-namespaces",)])
def test_no_attack_of_generated_code_succeeds_in_a_container(run, options):
    ran = run("tests/attacks/found/sandbox.py", *options)
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(found) > 40
    assert [each["attack"] for each in found if each["won"]] == []
