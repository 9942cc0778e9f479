"""The engine's model decides as vLLM's own scheduler does, whatever it is asked."""

import os
import re
import subprocess
from pathlib import Path

import lazy_loader
import pytest

from kairos.engines.vllm import CHECKOUT, MODEL_MAKER, installed_python

pytestmark = pytest.mark.vllm

# What Kairos needs and vLLM's environment lacks comes from ours, after vLLM's own.
PACKAGES = Path(lazy_loader.__file__).parents[1]
WITH_OURS = """
import runpy, sys
sys.path.append(sys.argv.pop(1))
runpy.run_module("tests.support.simulate.vllm_scheduler", run_name="__main__", alter_sys=True)
"""


def test_the_model_does_what_vllms_scheduler_decides(tmp_path):
    python, model = installed_python(), tmp_path / "tiny"
    subprocess.run([python, MODEL_MAKER, "tiny", model], check=True, timeout=30)
    done = subprocess.run(
        [python, "-c", WITH_OURS, PACKAGES, model, "--cases", "500"],
        cwd=CHECKOUT,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    preemptions = re.fullmatch(r"500 cases alike, with (\d+) preemptions\n", done.stdout)
    assert preemptions is not None, done.stdout
    assert int(preemptions[1]) > 500
