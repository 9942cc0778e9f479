"""Replies of the stand-in: a function of the seed and the prompt, so that runs are reproducible.

A script is a JSON list of rules. The first rule applies whose `system` occurs in the call's system
prompt, and one of whose `user` words, if it has any, in the rest of the prompt, both ignoring case.
Its reply is one of `replies`, with its words in rotation for one of the lengths that calls of the
rule's `agent` had in a recorded run, or unchanged if none is known. If the rule `calls` a tool,
`{"name": ..., "arguments": {...}}`, which the call offers and has no result of yet, that is the
reply. If no rule applies, words and length (log-normal, about 80 tokens) are drawn.

A token is a word with the white space that follows it; a prompt's tokens are its characters divided
by four.
"""

import json
import math
import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any

import msgspec

from kairos.core import SetupError, text_digest
from kairos.simulate.standin.bodies import StandInPrompt
from kairos.simulate.standin.replies import FinishReason
from kairos.simulate.workload.workflow_file import read_workflows

WORDS = ("the", "plan", "names", "each", "step", "and", "then", "a", "short", "answer", "follows")

Text = Annotated[str, msgspec.Meta(min_length=1)]


class ToolUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Text
    arguments: dict[str, Any] = {}
    times: Annotated[int, msgspec.Meta(ge=1)] = 1  # until there are so many results


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    system: Text
    replies: Annotated[list[Text], msgspec.Meta(min_length=1)]
    user: list[Text] = []
    agent: str | None = None
    calls: ToolUse | None = None

    def applies(self, prompt: StandInPrompt) -> bool:
        if self.system.lower() not in prompt.system.lower():
            return False
        return not self.user or any(word.lower() in prompt.rest.lower() for word in self.user)


class ScriptLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on a reply's length, from the request.

    `max_tokens` takes precedence over `min_tokens`.
    """

    max_tokens: int
    min_tokens: int = 1
    ignore_eos: bool = False


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A reply: its tokens, joined, are its text, or the arguments of the tool that it calls."""

    tokens: list[str]
    finish: FinishReason = "stop"
    tool: str | None = None


class Script:
    def __init__(
        self,
        rules: tuple[Rule, ...] = (),
        seed: int = 0,
        lengths: Mapping[str | None, Sequence[int]] = {},
    ) -> None:
        """Create the script.

        `lengths` has completion tokens of recorded calls, by the agent's name.
        """
        self._rules = rules
        self._seed = seed
        self._lengths = lengths

    def reply(self, prompt: StandInPrompt, limits: ScriptLimits, seed: int | None) -> Said:
        """Return a reply of at least one token. A text that is too short is repeated."""
        told = f"{self._seed} {seed} {prompt.system}\0{prompt.rest}"
        dice = random.Random(text_digest(told))  # noqa: S311
        rule = next((rule for rule in self._rules if rule.applies(prompt)), None)
        calls = None if rule is None else rule.calls
        if calls is not None and prompt.tools.get(calls.name, calls.times) < calls.times:
            return _called(calls, limits)
        tokens, length = self._draw(rule, dice)
        if limits.ignore_eos:
            length = limits.max_tokens
        length = max(length, limits.min_tokens)
        finish: FinishReason = "stop" if length < limits.max_tokens else "length"
        return Said(
            tokens=list(islice(cycle(tokens), min(length, limits.max_tokens))), finish=finish
        )

    def _draw(self, rule: Rule | None, dice: random.Random) -> tuple[list[str], int]:
        if rule is not None:
            tokens = tokenize(dice.choice(rule.replies))
            return tokens, dice.choice(self._lengths.get(rule.agent, [len(tokens)]))
        length = 1 + int(dice.lognormvariate(math.log(80), 0.6))
        return [f"{word} " for word in dice.choices(WORDS, k=length)], length


def _called(use: ToolUse, limits: ScriptLimits) -> Said:
    """Return the call of a tool, cut off at the limit as by vLLM."""
    tokens = tokenize(json.dumps(use.arguments))
    finish: FinishReason = "tool_calls" if len(tokens) < limits.max_tokens else "length"
    return Said(tokens=tokens[: limits.max_tokens], finish=finish, tool=use.name)


def load(path: Path) -> tuple[Rule, ...]:
    """Load a script. Raises SetupError: The file does not exist, or is not a script."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=tuple[Rule, ...])
    except OSError as error:
        raise SetupError(f"cannot read the script {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise SetupError(f"{path} is not a script for the stand-in: {error}") from error


def load_lengths(path: Path) -> dict[str | None, list[int]]:
    """Return the completion tokens of the calls in a workflow file, by agent.

    Raises:
        InvalidFile: The file cannot be read, or is not a workflow file.
    """
    lengths: dict[str | None, list[int]] = defaultdict(list)
    for call in read_workflows(path):
        lengths[call.agent].append(call.completion_tokens)
    return dict(lengths)


def tokenize(text: str) -> list[str]:
    return re.findall(r"\s*\S+\s*", text) or [text]


def prompt_tokens(text: str) -> int:
    return max(1, math.ceil(len(text) / 4))
