"""Replies of the demo's stand-in."""

from agents import cg, inputs, qa, rg
from kairos.cli.demos import engines
from tests.support.simulate.standin import Script, ScriptLimits, StandInPrompt, load, load_lengths

ENOUGH = ScriptLimits(max_tokens=1000)


def tokens_of(says, system, user):
    return says.reply(StandInPrompt(system, user), ENOUGH, None).tokens


def test_the_script_of_the_demo_has_a_rule_for_every_agent_and_task():
    says = Script(load(engines.SCRIPT))
    engineer = "You are a Python engineer."
    for task in inputs.load("cg"):
        code = "".join(tokens_of(says, engineer, task.text))
        assert f"def {task.entry_point}(" in code
    for task in inputs.load("qa"):
        router = "You sort questions into two fields."
        assert tokens_of(says, router, task.text) == [f"{task.kind} "]


def test_every_agent_of_the_demo_says_as_much_as_it_did_on_the_real_model():
    rules, lengths = load(engines.SCRIPT), load_lengths(engines.LENGTHS)
    agents = {name for app in (qa.app, rg.app, cg.app) for name in app.agents}

    assert {rule.agent for rule in rules} == set(lengths) == agents
