"""The experiment for a GPU, on vLLM for CPUs: all of it, once."""

import subprocess
import sys

import msgspec
import pytest

from experiments.e31_gpu import COMPARED, Row
from experiments.gpu import LEARNT, ROWS, SHARED
from kairos.engines import load_profile
from tests.support.vllm import needs_vllm

LIMIT_S = 600  # a machine that has other work, too
COMMAND = (sys.executable, "-m", "experiments.gpu", "play", "--cpu", "--repetitions=1")

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(LIMIT_S + 60)]


def play(directory):
    words = (*COMMAND, f"--into={directory}", f"--seconds={LIMIT_S}", "--commit=c")
    return subprocess.run(words, check=False, capture_output=True, text=True, timeout=LIMIT_S)


def test_policies_run_before_engines_that_were_calibrated_and_once_is_enough(tmp_path):
    needs_vllm()
    done = play(tmp_path)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / ROWS).read_bytes().splitlines()
    rows = [msgspec.json.decode(line, type=Row) for line in lines]

    assert {row.combination for row in rows} == set(COMPARED)
    assert [row.place for row in rows] == [1, 2, 3]
    assert len({(row.workflows, row.calls, row.rate_per_s) for row in rows}) == 1
    engine = load_profile(str(tmp_path / SHARED))
    for row in rows:
        assert (row.commit, row.device, row.profile) == ("c", "CPU", engine)
        assert 0 < row.measured.e2e_s["mean"] < row.elapsed_s
        assert row.simulated.e2e_s["mean"] > 0
    assert (engine.measured, engine.max_num_seqs) == (True, 4)
    assert (tmp_path / LEARNT).stat().st_size > 0

    again = play(tmp_path)
    assert again.returncode == 0
    assert "is starting" not in again.stderr
    assert (tmp_path / ROWS).read_bytes().splitlines() == lines
