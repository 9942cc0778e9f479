"""The engine's model decides as vLLM's own scheduler does, whatever it is asked."""

import os
import re
import subprocess

import pytest

from kairos.engines.vllm import CHECKOUT, MODEL_MAKER, installed_python

pytestmark = pytest.mark.vllm


def test_the_model_does_what_vllms_scheduler_decides(tmp_path):
    python, model = installed_python(), tmp_path / "tiny"
    subprocess.run([python, MODEL_MAKER, "tiny", model], check=True, timeout=30)
    done = subprocess.run(
        [python, "-m", "tests.support.simulate.vllm_scheduler", model, "--cases", "500"],
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
