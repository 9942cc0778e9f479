"""Row E10 of the design: what an instance has cached of a call counts as the time that it saves, so
it loses to a shorter wait: groups of unequal size do not leave an instance idle."""

from random import Random

from experiments.flow_workloads import words
from kairos import flow
from kairos.core import Dispatch, Finished
from kairos.simulate.flow_simulation import simulate_flow
from kairos.workflows import Functions
from tests.support.simulate.model import usual_pool

POOL = usual_pool("h200-llama3-8b", max_num_seqs=8)


def test_e10_instances_end_within_5_percent_of_each_other_where_groups_are_skewed():
    """Four rows of five begin with one long context."""
    f = flow.Flow("groups", max_tokens=60)
    row = f.input("row")
    f.output("answer", f.llm("ask", "{{ row.context }}\n{{ row.question }}", row=row))
    drawn = Random(1)
    table = [
        {"context": words("large" if drawn.random() < 0.8 else "small", 800), "question": f"q{n}"}
        for n in range(400)
    ]
    on, ended = {}, {}

    def look(record):
        made = (each for each in record.commands if isinstance(each, Dispatch))
        on.update((each.request_id, each.instance_id) for each in made)
        if isinstance(record.event, Finished):
            ended[on[record.event.request_id]] = record.at

    ran = simulate_flow(f.compile(), iter(table), Functions(), POOL, (look,))

    assert ran.figures.written == 400
    assert len(ended) == 2
    assert min(ended.values()) >= 0.95 * max(ended.values())
    assert ran.prompt_tokens_cached > 0.9 * (ran.prompt_tokens_cached + ran.prompt_tokens_computed)
