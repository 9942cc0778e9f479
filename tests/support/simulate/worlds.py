"""Builders of small simulated worlds, on engines whose every step takes a millisecond."""

from kairos.core import PLACEMENTS, POLICIES, Dispatch, EngineProfile, StepCost
from kairos.simulate import FileCall, World
from kairos.simulate.workload.workflows import Submission, workflow

MS = 1000  # µs


def profile(*, seqs=1, kv=10_000, **fields):
    """An answer of n tokens takes n steps: the first token comes with the prompt's."""
    fields.setdefault("step", StepCost(fixed_us=MS))
    return EngineProfile(
        name="test",
        source="",
        measured=False,
        kv_tokens=kv,
        block_size=10,
        max_num_seqs=seqs,
        max_num_batched_tokens=10_000,
        **fields,
    )


def call(tokens, *, prompt=10, agent="agent", **fields):
    fields.setdefault("upstream", None)
    return {"completion_tokens": tokens, "prompt_tokens": prompt, "agent": agent, **fields}


def submission(name, *calls, at=0, app="app"):
    """A workflow of these calls, in order, `at` so many ms."""
    made = [
        FileCall(workflow_id=name, app=app, call_index=index, **each)
        for index, each in enumerate(calls)
    ]
    return Submission(at_us=at * MS, workflow=workflow(made))


def world(submissions, *, instances=1, policy="fcfs", placement="round-robin", **options):
    if isinstance(instances, int):
        instances = [profile() for _ in range(instances)]
    if isinstance(instances, list):
        instances = {f"i{n}": each for n, each in enumerate(instances)}
    return World(submissions, instances, POLICIES[policy], PLACEMENTS[placement], **options)


def ran(submissions, **options):
    """The world after its run, and its log."""
    log = []
    made = world(submissions, observers=(log.append,), **options)
    made.run()
    return made, log


def told(log, *kinds):
    """Facts of these kinds: when (ms), what, and of which request, workflow or instance."""
    facts = [(record.at, record.event) for record in log if isinstance(record.event, kinds)]
    return [(at / MS, type(event).__name__, _whose(event)) for at, event in facts]


def _whose(event):
    if hasattr(event, "request"):
        return event.request.id
    if hasattr(event, "instance"):
        return event.instance.id
    names = ("request_id", "workflow_id", "instance_id")
    return next((getattr(event, name) for name in names if hasattr(event, name)), None)


def dispatched(log):
    """When (ms) which request went where."""
    commands = [(r.at / MS, each) for r in log for each in r.commands]
    return [(at, c.request_id, c.instance_id) for at, c in commands if isinstance(c, Dispatch)]


def recorded_call(workflow, index=0, *, prompt=900, answer=9, **fields):
    """Return a call of a file of workflows, of the agent `bot` of an app `chat` by default."""
    said = {"app": "chat", "agent": "bot", "upstream": None} | fields
    return FileCall(
        workflow_id=workflow,
        call_index=index,
        prompt_tokens=prompt,
        completion_tokens=answer,
        **said,
    )
