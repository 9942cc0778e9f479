"""Tables with rows that are bad in every way, and an engine that fails the texts of some of them.

`python -m tests.acceptance.bad_rows PORT` serves chat, embeddings and ranking. Answers are a
function of what is asked; a text with the word of a failure in it fails that way.
"""

import asyncio
import json
import random
import sys
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from aiohttp import web

from tests.support.simulate.standin import vector

WORDS = ["harbour", "lamp", "river", "granite", "amber", "and", "salt", "under", "cedar", "winter"]
QUOTA = {"message": "You exceeded your current quota", "code": "insufficient_quota"}


NULL = object()


class Bad(NamedTuple):
    """A kind of bad row: its line of JSON, or how its question or its text changes.

    `reasons`: by flow the operator and the reason in the table of errors. A flow that is missing
    takes the row.
    """

    line: bytes | None
    question: str
    text: object
    reasons: dict[str, tuple[str, str]]


RAG, ASK, CONTEXT, CHECK = (
    "advanced_rag",
    "ask_documents",
    "contextual_retrieval",
    "extract_and_check",
)
FLOWS = (RAG, ASK, CONTEXT, CHECK)


def everywhere(reason, operator=""):
    return dict.fromkeys(FLOWS, (operator, reason))


def of_line(line, reason):
    return Bad(line, "", None, everywhere(reason))


def of_text(value, **reasons):
    return Bad(None, "", value, reasons)


def asked(word, reason, first=None):
    """Return a row that fails where a model is asked the question; `first`: in which operators."""
    named = first or {RAG: "expanded", ASK: "first", CONTEXT: "answer"}
    return Bad(None, word, None, {flow: (each, reason) for flow, each in named.items()})


def embedded(word, reason):
    return of_text(word, **dict.fromkeys((RAG, ASK, CONTEXT), ("vectors", reason)))


UNTYPED = dict.fromkeys((RAG, ASK, CONTEXT), ("passages", "text"))
IN_SCHEMA = {RAG: "expanded"}  # another flow has none, or takes its default
KINDS = {
    "half an object": of_line(b'{"text": "a", "question": ', "line {line} is not a JSON object"),
    "a list": of_line(b'["a", "b"]', "line {line} is not a JSON object"),
    "no UTF-8": of_line(b'{"text": "\xff\xfe", "question": "q"}', "line {line}"),
    "half a pair": of_line(b'{"text": "\\ud800", "question": "q"}', "line {line}"),
    "deep": of_line(b'{"text": ' + b"[" * 5000 + b"]" * 5000 + b"}", "line {line}"),
    "no column": Bad(
        b'{"question": "q"}', "", None, dict.fromkeys((RAG, ASK, CONTEXT), ("passages", "text"))
    ),
    "null": of_text(NULL, **UNTYPED, **{CHECK: ("check", "TypeError")}),
    "NaN": of_text(float("nan"), **UNTYPED, **{CHECK: ("check", "TypeError")}),
    "a number": of_text(7, **UNTYPED, **{CHECK: ("check", "TypeError")}),
    "an object": of_text({"a": 1}, **UNTYPED),
    "blank": of_text(" ", **{RAG: ("first", "has no '0'"), ASK: ("the row", "has no '0'")}),
    "refused": asked("fails-400", "400: words of the engine"),
    "not found": asked("fails-404", "404: words of the engine"),
    "broken": asked("fails-500", "500: words of the engine"),
    "dropped": asked("fails-drop", "connection"),
    "quota": asked("fails-quota", "429: You exceeded your current quota"),
    "no text": asked("fails-null", "no text"),
    "cut": asked("fails-cut", "cut at max_tokens"),
    "filtered": asked("fails-filter", "a content filter ended it"),
    "refusal": asked("fails-refusal", "the model refused: I will not"),
    "prose for JSON": asked("fails-prose", "not JSON", IN_SCHEMA),
    "another schema": asked("fails-schema", "", IN_SCHEMA),
    "no chat completion": asked("fails-shape", "not a chat completion"),
    "embedder's 500": embedded("embeds-500", "500: json: unsupported value: NaN"),
    "embedder's 400": embedded("embeds-400", "400: json: unsupported value: NaN"),
    "embedder's NaN": embedded("embeds-nan", "not a JSON object"),
    "embedder's null": embedded("embeds-null", "no valid vectors"),
    "embedder drops it": embedded("embeds-drop", "closed the connection"),
    "a function raises": of_text("raises-stop", **{CHECK: ("check", "StopIteration")}),
    "a function exits": of_text("raises-exit", **{CHECK: ("check", "SystemExit: 3")}),
    "a function gives no JSON": of_text("gives-object", **{CHECK: ("check", "not JSON")}),
    "a function gives half a pair": of_text("gives-half", **{CHECK: ("check", "surrogate")}),
}
# At these a call is tried again for half a minute.
QUICK = [name for name in KINDS if name not in ("broken", "dropped")]
# The functions of the examples, as they are, and as they are where a row makes them fail.
FUNCTIONS = """
from examples import functions as known
from kairos.flow import Functions

functions = Functions()


def in_text(figures, text):
    figures.append({"value": ""})  # nobody else's
    figures.pop()
    if "raises-stop" in text:
        return next(iter(()))
    if "raises-exit" in text:
        raise SystemExit(3)
    if "gives-object" in text:
        return object()
    return "\\ud800" if "gives-half" in text else known.in_text(figures, text)


functions.register(in_text, purity="pure", version="1")
"""


@dataclass
class Table:
    """Lines of rows, and of the bad ones their kinds by number."""

    lines: list[bytes]
    bad: dict[int, str]


def table(flow, good, share, kinds=None, seed=7):
    """Return good rows, with bad ones of every kind among them, or of these."""
    draw, lines, bad = random.Random(seed), [], {}
    kinds = [name for name in kinds or KINDS if flow in KINDS[name].reasons]
    count = max(len(kinds), round(good * share))
    chosen = [kinds[n % len(kinds)] for n in range(count)]
    places = set(draw.sample(range(good + count), count))
    for row in range(good + count):
        kind = chosen.pop() if row in places else None
        words = " ".join(draw.choice(WORDS) for _ in range(150))
        if kind is not None:
            bad[row] = kind
        lines.append(_line(row, words, None if kind is None else KINDS[kind]))
    return Table(lines, bad)


def _line(row, words, bad):
    if bad is not None and bad.line is not None:
        return bad.line
    text, question = f"Text {row}. {words}", f"Where is {row} of {words[:30]}?"
    if bad is not None:
        text = _changed(text, bad.text)
        question = f"{bad.question} {question}"
    return json.dumps({"text": text, "question": question, "report": row}).encode()


def _changed(text, by):
    if by is NULL:
        return None
    if by == " " or not isinstance(by, str):
        return text if by is None else by
    return f"{by} {text}"


def expected(flow, of):
    """Return operator and reason of each bad row."""
    found = {row: KINDS[kind].reasons[flow] for row, kind in of.bad.items()}
    return {row: (name, why.format(line=row + 1)) for row, (name, why) in found.items()}


def answer(body):
    """Return a chat completion for a request, or a refusal."""
    prompt = "".join(each["content"] for each in body["messages"] if each["role"] == "user")
    word = next((each for each in prompt.split() if each.startswith("fails-")), "")
    name = sha256(prompt.encode()).hexdigest()
    message, reason = {"role": "assistant", "content": f"said {name[:12]}"}, "stop"
    if "response_format" in body:
        message["content"] = _structured(body, name)
    match word:
        case "fails-400" | "fails-404" | "fails-500":
            error = {"error": {"message": "words of the engine"}}
            return web.json_response(error, status=int(word[-3:]))
        case "fails-quota":
            return web.json_response({"error": QUOTA}, status=429)
        case "fails-shape":
            return web.json_response({"choices": []})
        case "fails-null" | "fails-refusal":
            message["content"] = None
            message |= {"refusal": "I will not"} if word == "fails-refusal" else {}
        case "fails-cut" | "fails-filter":
            reason = "length" if word == "fails-cut" else "content_filter"
        case "fails-prose" if "response_format" in body:
            message["content"] = "Here you are: questions"
        case "fails-schema" if "response_format" in body:
            message["content"] = '{"other": 1}'
    choice = {"index": 0, "message": message, "finish_reason": reason}
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    return web.json_response({"id": "1", "choices": [choice], "usage": usage})


def _structured(body, name):
    properties = body["response_format"]["json_schema"]["schema"]["properties"]
    if "figures" in properties:
        return json.dumps({"figures": [{"what": "sales", "value": name[:3]}]})
    count = properties["questions"]["minItems"]
    return json.dumps({"questions": [f"{n} {name[:50]}" for n in range(count)]})


async def _chat(request):
    body = await request.json()
    if "fails-drop" in str(body["messages"]):
        request.transport.abort()
    return answer(body)


async def _embeddings(request):
    texts = (await request.json())["input"]
    failing = {w for text in texts for w in text.split() if w.startswith("embeds-")}
    for word in ("embeds-500", "embeds-400"):
        if word in failing:
            error = {"error": {"message": "json: unsupported value: NaN"}}
            return web.json_response(error, status=int(word[-3:]))
    if "embeds-drop" in failing:
        request.transport.abort()
        return web.Response()
    data = [{"index": at, "embedding": vector(text)} for at, text in enumerate(texts)]
    for each, text in zip(data, texts, strict=True):
        if "embeds-nan" in text:
            each["embedding"] = [float("nan")]
        elif "embeds-null" in text:
            each["embedding"] = None
    return web.json_response({"object": "list", "data": data, "model": "made-up"})


async def _rerank(request):
    body = await request.json()
    words = set(body["query"].split())
    scores = [len(words & set(each.split())) / len(words) for each in body["documents"]]
    found = [{"index": at, "relevance_score": score} for at, score in enumerate(scores)]
    return web.json_response({"results": found})


async def _models(request):
    await asyncio.sleep(0)
    return web.json_response({"object": "list", "data": [{"id": "tiny", "object": "model"}]})


def app():
    made = web.Application(client_max_size=1 << 26)
    made.router.add_get("/v1/models", _models)
    made.router.add_post("/v1/chat/completions", _chat)
    made.router.add_post("/v1/embeddings", _embeddings)
    made.router.add_post("/v1/rerank", _rerank)
    return made


if __name__ == "__main__":
    web.run_app(
        app(),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        access_log=None,
        print=lambda _: print("ready", flush=True),
    )
