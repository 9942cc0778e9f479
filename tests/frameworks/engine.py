"""The stand-in, by the script of a flow whose runs can be told apart.

The question that a run is asked bears its mark. A reply goes on with the marks in its prompt, and
some words that only this run has, so that what is handed on bears them, too, unless replies are to
be the same in all runs.
"""

import random
import re
from contextlib import asynccontextmanager

import msgspec

from tests.support.simulate import standin as server
from tests.support.simulate.standin import (
    Script,
    StandInBody,
    StandInPrompt,
    Timing,
    chat_prompt,
    responses_prompt,
    tokenize,
)

MARK = re.compile(r"run-[0-9a-f]{6}")
SETTINGS = server.StandInSettings(
    model="tiny", max_num_seqs=64, timing=Timing(step_s=0.001, step_per_seq_s=0.0)
)


class Marked(Script):
    def __init__(self, rules, *, same_replies):
        super().__init__(rules)
        self._same_replies = same_replies

    def reply(self, prompt, limits, seed):
        prompt = _instructed(prompt)
        unmarked = StandInPrompt(
            MARK.sub("", prompt.system), MARK.sub("", prompt.rest), prompt.tools
        )
        said = super().reply(unmarked, limits, seed)
        if said.tool is None and not self._same_replies:
            said.tokens[-1] += " "
            said.tokens.extend(tokenize(_own("".join(said.tokens), _marks(prompt))))
        return said


def _instructed(prompt):
    """Where there is no system prompt, the user's words are instructions."""
    return prompt if prompt.system else prompt._replace(system=prompt.rest)


def _own(text, marks):
    dice = random.Random(f"{text} {marks}")
    words = ["".join(dice.choices("aeinorst", k=dice.randint(3, 9))) for _ in range(12)]
    return f"({' '.join(marks)}: {' '.join(words)})"


def _marks(prompt):
    return sorted(set(MARK.findall(f"{prompt.system}\n{prompt.rest}")))


@asynccontextmanager
async def serve(rules, *, same_replies=True):
    async with server.serve(SETTINGS, Marked(rules, same_replies=same_replies)) as engine:
        yield engine


def asked(engine, rules):
    """By request id, of what the engine was asked: the agent that it takes it for, the marks."""
    found = {}
    for received in engine.received:
        read = responses_prompt if received.path == "/v1/responses" else chat_prompt
        prompt = _instructed(read(msgspec.json.decode(received.body, type=StandInBody)))
        agent = next(rule.agent for rule in rules if rule.applies(prompt))
        found[received.headers["X-Request-Id"]] = agent, set(MARK.findall(received.body.decode()))
    return found
