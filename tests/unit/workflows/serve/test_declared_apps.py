"""What invocations say beforehand of their calls."""

from kairos.core import SECOND, Unavailable
from kairos.workflows.compile.pipeline import compile_plan
from kairos.workflows.declare.yaml_file import read_yaml
from kairos.workflows.serve.invoking import DeclaredApps

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
