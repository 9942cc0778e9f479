"""How long the work of one invocation may compute."""

from kairos.workflows.serve import invocation
from kairos.workflows.serve.invocation import ComputeTime


def test_work_that_begins_has_the_whole_time_before_it(monkeypatch):
    monkeypatch.setattr(invocation, "COMPUTE_S", 0.5)
    spent = ComputeTime()

    assert not spent.spend_on(spent.is_spent)
    spent.end()
    assert spent.spend_on(spent.is_spent), "nobody waits for it any more"
