"""Calls for `kairos plan-hardware`, and the command itself."""

from tests.support.cli.command import invoke
from tests.support.simulate.worlds import recorded_call


def call(workflow, index, agent, prompt, answer, **fields):
    """Return a call of the app `docs`: the first is a user's, the others follow from `plan`."""
    said = {"app": "docs", "upstream": "plan" if index else "user"} | fields
    return recorded_call(workflow, index, agent=agent, prompt=prompt, answer=answer, **said)


def run(*words):
    """Return the result of `kairos plan-hardware WORDS`; an error of its own is raised."""
    found = invoke("plan-hardware", *words)
    if found.exception and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found
