"""The brain that was compiled decides as its source does, to the last byte."""

import os
import subprocess
import sys

import pytest

import kairos
import kairos.core.balancer
from kairos.host import compiled_brain
from tests.simulation.logs import digests


@pytest.mark.skipif(not kairos.is_compiled, reason="the brain is not compiled: `make compile`")
def test_every_log_is_the_same_byte_for_byte_as_that_of_the_source():
    assert kairos.core.balancer.__file__.endswith(compiled_brain.SUFFIX)
    interpreted = subprocess.run(
        [sys.executable, "-m", "tests.simulation.logs"],
        env=os.environ | {compiled_brain.INTERPRETED: "1"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert interpreted.stdout.splitlines() == [f"{name}: {d}" for name, d in digests().items()]
