"""The stand-in for an engine, as tests of other rooms run it: its settings, what it says, and
how it answers processors."""

from kairos.simulate.processors import processed, vector
from kairos.simulate.standin.batch import INSTANT, Timing
from kairos.simulate.standin.bodies import (
    Failure,
    StandInBody,
    StandInPrompt,
    chat_prompt,
    responses_prompt,
)
from kairos.simulate.standin.routes import NEWEST, OLDEST
from kairos.simulate.standin.script import (
    Rule,
    Script,
    ScriptLimits,
    ToolUse,
    load,
    load_lengths,
    tokenize,
)
from kairos.simulate.standin.server import StandInSettings, serve
from kairos.simulate.standin.server import _arguments as read_arguments

__all__ = [
    "INSTANT",
    "NEWEST",
    "OLDEST",
    "Failure",
    "Rule",
    "Script",
    "ScriptLimits",
    "StandInBody",
    "StandInPrompt",
    "StandInSettings",
    "Timing",
    "ToolUse",
    "chat_prompt",
    "load",
    "load_lengths",
    "processed",
    "read_arguments",
    "responses_prompt",
    "serve",
    "tokenize",
    "vector",
]
