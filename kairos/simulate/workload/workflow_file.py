"""A *workflow file* is JSON lines, one LLM call each: which calls workflows made, in numbers only.

The format, field by field, stands in traces/README.md.
"""

import gzip
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Annotated

import msgspec

from kairos.core import InvalidFile, SetupError
from kairos.host import atomic_write, read_lines

MAX_TOKENS = 10_000_000  # of a prompt, and of a completion

# Names are shown in terminals: control characters have no place in them.
Name = Annotated[
    str, msgspec.Meta(min_length=1, max_length=256, pattern=r"\A[^\x00-\x1f\x7f-\x9f]*\Z")
]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
Instant = Annotated[int, msgspec.Meta(ge=0, le=10**15)]  # ms since the epoch


class FileCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A recorded LLM call of a workflow.

    It waits for the calls before it in its workflow, unless it shares a `parallel_group` with them.
    """

    workflow_id: Name
    app: Name
    agent: Name
    upstream: Name | None  # the agent whose output triggered it, or `user`, `env`, `tool`
    call_index: Count  # ascending in a workflow; there may be holes
    prompt_tokens: Tokens
    completion_tokens: Tokens
    parallel_group: Name | None = None
    gap_ms: Count | None = None  # tool or user time before the call
    start_ms: Count | None = None  # from the start of the workflow
    end_ms: Count | None = None
    workflow_start_ms: Instant | None = None  # since the epoch, or any instant that all share
    cached_prefix_tokens: Count | None = None  # of the prompt, found in a prefix cache
    # Of the prompt, from its start, what is the same in every call of this app's agent.
    shared_prefix_tokens: Count | None = None
    model: Name | None = None  # that the call asked for


def read_workflows(path: Path) -> Iterator[FileCall]:
    """The calls of a workflow file, plain or gzip, in the order of the file.

    Raises:
        InvalidFile: at the first line that is not a call, when it is reached.
    """
    return (call for _, call in numbered_calls(path))


def numbered_calls(path: Path) -> Iterator[tuple[int, FileCall]]:
    """Yield each call with its line number, from 1."""
    decoder = msgspec.json.Decoder(FileCall)
    for number, line in read_lines(path):
        try:
            yield number, decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidFile(path, f"not a call of a workflow: {error}", line=number) from error


def write_workflows(path: Path, calls: Iterable[FileCall]) -> None:
    """Write a workflow file whole, or not at all; as gzip when the name ends in `.gz`.

    Raises:
        SetupError: the file cannot be written there, or a call could not be read again.
    """
    encoder, decoder = msgspec.json.Encoder(), msgspec.json.Decoder(FileCall)
    with packed_if_named_so(path) as file:
        for call in calls:
            line = encoder.encode(call)
            try:
                decoder.decode(line)
            except msgspec.DecodeError as error:
                raise SetupError(f"cannot write {call}: {error}") from error
            file.write(line + b"\n")


@contextmanager
def packed_if_named_so(path: Path) -> Iterator[BufferedIOBase]:
    """Write a file whole, or not at all, in the block; as gzip when the name ends in `.gz`.

    Raises:
        SetupError: the file cannot be written there.
    """
    with atomic_write(path) as file:
        if path.suffix == ".gz":
            # No name and no time in the header: the same content gives the same bytes.
            with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                yield packed
        else:
            yield file
