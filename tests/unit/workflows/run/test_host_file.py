"""The file of a host whose devices serve one model at a time."""

import pytest

from kairos.core import InvalidFile
from kairos.workflows.compile.flow_profile import UNKNOWN_FACTORS, CostFactors
from kairos.workflows.run.engine_host import read_host

HOST = 'devices = 2\n[models.small]\nengine = "llama"\n'


def host(tmp_path, more=""):
    path = tmp_path / "host.toml"
    path.write_text(HOST + more)
    return read_host(path)


def test_factors_of_the_cost_are_read_and_need_not_be_there(tmp_path):
    assert host(tmp_path).cost == UNKNOWN_FACTORS
    assert host(tmp_path, "[cost]\nreuse = 0.5\n").cost == CostFactors(reuse=0.5)
    assert host(tmp_path, "[cost]\nsharing = 0.9\n").cost == CostFactors(sharing=0.9)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("reuse = 1.5", r"reuse of \[cost\] is 1.5: give 0 to 1"),
        ("reuse = -0.1", r"reuse of \[cost\] is -0.1"),
        ("sharing = 2", r"sharing of \[cost\] is 2.0"),
        ("sharing = nan", r"sharing of \[cost\] is nan"),
        ("reuse = inf", r"reuse of \[cost\] is inf"),
        ('reuse = "all"', "reuse"),
        ("lambda = 0.5", "lambda"),
        ("sharing = true", "sharing"),
    ],
)
def test_factors_that_make_no_sense_are_refused_by_name(line, said, tmp_path):
    with pytest.raises(InvalidFile, match=said):
        host(tmp_path, f"[cost]\n{line}\n")
