"""What the example applications are given to do: the built-in inputs, or a real data set.

Built-in inputs lie in traces/inputs. A data set is read from the cache, where
`kairos traces fetch NAME` puts it.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from kairos.core import InvalidFile, SetupError
from kairos.simulate.workload.traces import fetched_data_set

App = Literal["qa", "rg", "cg"]
Kind = Literal["mathematics", "humanities"]

BUILTIN = Path(__file__).resolve().parent.parent / "traces" / "inputs"


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """One task that a user gives to an application."""

    id: str
    app: App
    text: str
    kind: Kind | None = None  # QA: the field of the question
    answer: str | None = None  # QA: the right one, in short
    tests: str | None = None  # CG: Python that raises when the code is wrong
    entry_point: str | None = None  # CG: the function that the tests call


Fields = dict[str, Any]  # of an Input, as far as a row tells them; validated with the Input


class Source(NamedTuple):
    app: App
    kind: Kind | None
    rows: Callable[[bytes], Iterator[Fields]]


def load(app: App, source: str = "builtin") -> list[Input]:
    """The inputs of an application, in the order of the source.

    Raises:
        SetupError: there is no such source for this application, or it has not been fetched.
    """
    _, kind, rows = _source(app, source)
    path = BUILTIN / f"{app}.jsonl" if source == "builtin" else fetched_data_set(source)
    try:
        return [
            msgspec.convert({"id": f"{source}-{n}", "app": app, "kind": kind} | fields, Input)
            for n, fields in enumerate(rows(path.read_bytes()))
        ]
    except OSError as error:
        raise SetupError(
            f"cannot read {path} ({error.strerror}); the built-in inputs need a checkout of Kairos"
        ) from error
    except (msgspec.DecodeError, KeyError) as error:
        raise InvalidFile(path, f"not inputs for {app}: {error!r}") from error


def _source(app: App, name: str) -> Source:
    if app not in BUILTIN_SOURCES:
        raise SetupError(f"no application is called '{app}'; choose one of: qa, rg, cg")
    known = {"builtin": BUILTIN_SOURCES[app]}
    known |= {name: source for name, source in SOURCES.items() if source.app == app}
    if name not in known:
        raise SetupError(f"'{name}' holds no inputs for {app}; choose one of: {', '.join(known)}")
    return known[name]


def _json_lines(data: bytes) -> Iterator[Fields]:
    yield from msgspec.json.Decoder(Fields).decode_lines(data)


def _json_array(data: bytes) -> Iterator[Fields]:
    yield from msgspec.json.decode(data, type=list[Fields])


def _builtin(text_field: str, data: bytes) -> Iterator[Fields]:
    for row in _json_lines(data):
        yield row | {"text": row[text_field]}


def _gsm8k(data: bytes) -> Iterator[Fields]:
    for row in _json_lines(data):
        _, _, answer = row["answer"].rpartition("#### ")
        yield {"text": row["question"], "answer": answer.replace(",", "")}


def _svamp(data: bytes) -> Iterator[Fields]:
    for row in _json_lines(data):
        story = row["Body"].rstrip(" .")
        yield {"text": f"{story}. {row['Question']}", "answer": str(int(row["Answer"]))}


def _instructions(data: bytes) -> Iterator[Fields]:
    for row in _json_array(data):
        yield {"text": row["instruction"], "answer": row["answer"]}


def _mmlu_history(data: bytes) -> Iterator[Fields]:
    """One column without a header, in the Chinese encoding that somebody saved it in."""
    for (question,) in csv.reader(io.StringIO(data.decode("gbk"), newline="")):
        yield {"text": question}


def _truthful_qa(data: bytes) -> Iterator[Fields]:
    for row in csv.DictReader(io.StringIO(data.decode(), newline="")):
        question, _, _choices = row["prompt"].partition("\n")
        yield {"text": question}


def _natural_questions(data: bytes) -> Iterator[Fields]:
    for row in _json_lines(data):
        yield {"text": row["question"]}


def _humaneval(data: bytes) -> Iterator[Fields]:
    for row in _json_lines(data):
        *_, wanted = re.finditer(r"^def (\w+)", row["prompt"], re.MULTILINE)
        # A few tests call a function that the prompt defines above the wanted one.
        tests = row["prompt"][: wanted.start()] + row["test"]
        yield {"text": row["prompt"], "tests": tests, "entry_point": wanted[1]}


def _mbpp(data: bytes) -> Iterator[Fields]:
    for row in _json_lines(data):
        # The text alone does not name the function.
        example = row["test_list"][0]
        defined = re.findall(r"^def (\w+)", row["code"], re.MULTILINE)
        yield {
            "text": f"{row['text']}\nYour code must satisfy: {example}",
            "tests": "\n".join([row["test_setup_code"], *row["test_list"], ""]),
            "entry_point": next(name for name in defined if re.search(rf"\b{name}\b", example)),
        }


BUILTIN_SOURCES: dict[App, Source] = {
    "qa": Source("qa", None, partial(_builtin, "question")),
    "rg": Source("rg", None, partial(_builtin, "topic")),
    "cg": Source("cg", None, partial(_builtin, "prompt")),
}

SOURCES = {
    "gsm8k_test": Source("qa", "mathematics", _gsm8k),
    "svamp_test": Source("qa", "mathematics", _svamp),
    "mathqa_test": Source("qa", "mathematics", _instructions),
    "mmlu_history": Source("qa", "humanities", _mmlu_history),
    "social_i_qa_test": Source("qa", "humanities", _instructions),
    "TruthfulQA": Source("rg", None, _truthful_qa),
    "NQ-open.dev": Source("rg", None, _natural_questions),
    "humaneval-python": Source("cg", None, _humaneval),
    "mbpp": Source("cg", None, _mbpp),
}
