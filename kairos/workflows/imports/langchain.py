"""Convert chains `prompt | model | parser` of LangChain to LLM operators.

A chain is converted only if the call is the same: its prompt is of texts with plain variables, and
its model is a ChatOpenAI that sends only parameters an operator has. The temperature must be set,
since an operator always sends one, and an engine's default is not known. The converted prompt is
compared with LangChain's own rendering.
"""

import re
from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

import msgspec

from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.compile.operators import RESERVED, Role
from kairos.workflows.compile.templates import BadTemplate, template

_ROLES: Mapping[str, Role] = {
    "SystemMessagePromptTemplate": "system",
    "SystemMessage": "system",
    "HumanMessagePromptTemplate": "user",
    "HumanMessage": "user",
    "AIMessagePromptTemplate": "assistant",
    "AIMessage": "assistant",
}
_SENT = {
    "model": "model",
    "temperature": "temperature",
    "max_completion_tokens": "max_tokens",
    "max_tokens": "max_tokens",
    "top_p": "top_p",
    "seed": "seed",
    "stop": "stop",
}
# Jinja would interpret these, drop them, or render them differently.
_NOT_PLAIN = re.compile(r"[{}\r]|\n\Z")


class NotLifted(Exception):
    """A chain cannot be an LLM operator; the message says why."""


class LiftedChain(msgspec.Struct, frozen=True):
    """Converted chain.

    `sampling`: arguments of `Flow.llm`. `after`: LangChain's processing of the answer's text; None:
    nothing. `parses`: it is just the JSON parser.
    """

    messages: Sequence[tuple[Role, str]]
    variables: Sequence[str]
    sampling: Mapping[str, Any]
    after: Any
    parses: bool


def lifted(runnable: Any) -> LiftedChain:
    """Convert a chain. Raises NotLifted: it stays opaque; the message says why."""
    from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.runnables import RunnableSequence

    if type(runnable) is not RunnableSequence:
        raise NotLifted("it is not `prompt | model | parser`")
    prompt, model, *rest = runnable.steps
    if type(prompt) is not ChatPromptTemplate:
        raise NotLifted("it does not begin with a ChatPromptTemplate")
    if not _is_chat_openai(model):
        raise NotLifted(f"its model is a {type(model).__name__}, not a ChatOpenAI as it is")
    if not rest or type(rest[0]) not in (StrOutputParser, JsonOutputParser):
        raise NotLifted("its model is not followed by a StrOutputParser or a JsonOutputParser")
    messages = [_message(each) for each in prompt.messages]
    variables = sorted(prompt.input_variables)
    sampling = _checked(prompt, model, messages, variables)
    is_json = type(rest[0]) is JsonOutputParser
    steps = rest if is_json else rest[1:]
    after = RunnableSequence(*steps) if len(steps) > 1 else next(iter(steps), None)
    return LiftedChain(messages, variables, sampling, after, parses=is_json and len(rest) == 1)


def _is_chat_openai(model: object) -> bool:
    kind = type(model)
    return kind.__name__ == "ChatOpenAI" and kind.__module__.startswith("langchain_openai.")


def _message(message: Any) -> tuple[Role, str]:
    name = type(message).__name__
    if name not in _ROLES:
        raise NotLifted(f"its prompt has a {name}")
    inner = getattr(message, "prompt", None)
    if inner is None:
        return _ROLES[name], _literal(message.content)
    if getattr(inner, "template_format", None) != "f-string" or inner.partial_variables:
        raise NotLifted("its prompt is not of f-strings with nothing filled in beforehand")
    return _ROLES[name], _jinja(inner.template)


def _literal(text: object) -> str:
    if not isinstance(text, str):
        raise NotLifted("its prompt has more than texts")
    return _NOT_PLAIN.sub(lambda found: "{{ " + _quoted(found[0]) + " }}", text)


def _quoted(character: str) -> str:
    return {"\n": '"\\n"', "\r": '"\\r"'}.get(character, f'"{character}"')


def _jinja(source: str) -> str:
    """Return the Jinja template of an f-string."""
    parts = []
    for text, name, written, conversion in Formatter().parse(source):
        parts.append(_literal(text))
        if name is None:
            continue
        if written or conversion or not name.isidentifier() or name in RESERVED:
            raise NotLifted(f"its prompt has '{{{name}}}', which is not a plain name of a value")
        parts.append("{{ " + name + " }}")
    return "".join(parts)


def _checked(
    prompt: Any, model: Any, messages: Sequence[tuple[Role, str]], variables: Sequence[str]
) -> dict[str, Any]:
    """Return the sampling arguments of `Flow.llm`, once LangChain's request was compared."""
    probe = {name: f' {{{{ {name} }}}} {{%x%}} "\u00e9"\n' for name in variables}
    body = model._get_request_payload(prompt.format_messages(**probe))
    try:
        said = [{"role": role, "content": template(text).render(probe)} for role, text in messages]
    except (BadTemplate, OperatorFailed) as error:
        raise NotLifted(f"its prompt cannot be said as a template: {error}") from error
    if [dict(each) for each in body.pop("messages", ())] != said:
        raise NotLifted("its prompt reads differently as a template")
    body.pop("stream", None)  # of how the answer comes
    body.pop("stream_options", None)
    if unknown := sorted(set(body) - set(_SENT)):
        raise NotLifted(f"its model sends '{unknown[0]}', which an LLM operator does not")
    if body.get("temperature") is None:
        raise NotLifted("its model says no temperature, and the engine's own is not known")
    sampling = {_SENT[name]: value for name, value in body.items() if value is not None}
    if isinstance(sampling.get("stop"), str):
        sampling["stop"] = [sampling["stop"]]
    return sampling
