"""Run the attacks of generated code with namespaces, and as in a container that forbids them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("options", [(), ("--without-namespaces",)])
def test_no_attack_succeeds(options):
    program = (sys.executable, str(Path(__file__).with_name("sandbox.py")), *options)
    environ = {"PATH": os.environ["PATH"], "KAIROS_AGENTS": str(ROOT)}
    ran = subprocess.run(program, capture_output=True, text=True, env=environ, check=False)
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(found) > 40
    assert [each["attack"] for each in found if each["won"]] == []
    lacks = {layer.split(" (")[0] for layer in found[0]["lacks"]}
    assert lacks == ({"namespaces", "scratch file system"} if options else set())
