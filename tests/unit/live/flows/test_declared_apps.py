"""What invocations say beforehand of their calls."""

from kairos.errors import Unavailable
from kairos.flow.yaml_file import read_yaml
from kairos.live.flows.declared_apps import DeclaredApps
from kairos.model import SECOND
from kairos.plan.pipeline import compile_plan

TEXT = """
flow: one
operators:
  row: {kind: input}
  say: {kind: llm, prompt: "{{ row.text }}"}
outputs: {said: say}
"""


def test_a_plan_that_cannot_be_told_fails_no_invocation_and_is_told_later():
    plan, told, is_away = compile_plan(read_yaml(TEXT, "one")), [], True

    def feed(event):
        if is_away:
            raise Unavailable("nobody decides")
        told.append(event.app)

    apps = DeclaredApps(feed)
    apps.tell("default", "one", "digest", plan, at=0)
    is_away = False
    apps.tell("default", "one", "digest", plan, at=SECOND)
    assert told == []
    apps.tell("default", "one", "digest", plan, at=60 * SECOND)
    assert told == ["one"]
