"""The figures of an orchestrator in /metrics."""

from kairos.cluster.orchestrate.follower import Ends, Follower
from kairos.cluster.orchestrate.service import OrchestratorMetrics
from kairos.core import WorkflowEnded
from tests.support.exposed import exposed


class Published:
    """A bus that takes all."""

    async def publish(self, topic, message):
        pass


async def test_ends_that_were_told_on_are_counted_on_standby_too():
    ends = Ends(Published(), ("default",))
    metrics = OrchestratorMetrics(Follower(None, None, ends, idle_us=1), ends)
    for n in range(3):
        await ends.tell(WorkflowEnded("default", f"w{n}"))

    text = exposed(metrics.collect()).decode()
    assert "kairos_orchestrator_ends_total 3.0\n" in text
    assert "kairos_orchestrator_active 0.0\n" in text
