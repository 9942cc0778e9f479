"""Real data sets: a catalogue, verified downloads, and descriptions of files.

No data set is part of Kairos. Each is fetched from the commit that the catalogue pins, or taken
from a local path on hosts without network, and accepted only if size and SHA-256 match the
original.
"""

import os
import time
import tomllib
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from hashlib import sha256
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path
from urllib.request import urlopen

import msgspec

from kairos.core import SECOND, InvalidFile, SetupError, percentile
from kairos.host import CHUNK_BYTES, atomic_write, read_chunks, read_lines
from kairos.simulate.workload.arrival_process import Burstiness, measure_burstiness
from kairos.simulate.workload.azure_trace import is_trace, read_trace
from kairos.simulate.workload.workflow_file import read_workflows

SILENCE_S = 30  # without a byte
DOWNLOAD_S = 600  # in all


class DataSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entry of the catalogue. Size and checksum are for the original, unpacked file."""

    file: str
    what: str
    url: str
    bytes: int
    sha256: str
    rows: int
    licence: str


def data_sets() -> dict[str, DataSet]:
    text = (files("kairos.simulate.workload") / "traces.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, DataSet])


def fetch_data_set(name: str, source: Path | None = None) -> Path:
    """Return the path of a data set in the cache, after fetching it if necessary.

    `source` is the file itself or a directory that holds it (or one level of directories that do),
    plain or gzip; without it the file is downloaded.

    Raises:
        SetupError: The data set is unknown or unavailable. The cache is unchanged.
    """
    data_set = _data_set(name)
    path = _cached(data_set)
    if _is_original(path, data_set):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(
            f"cannot make the cache directory {path.parent} ({error.strerror}); "
            "set KAIROS_HOME to a directory that can be written"
        ) from error
    if source is None:
        _keep(data_set, _download(name, data_set), data_set.url, path)
    else:
        found = _find(name, data_set, source)
        _keep(data_set, read_chunks(found), str(found), path)
    return path


def fetched_data_set(name: str) -> Path:
    """Return the path of a data set that has been fetched before.

    Raises:
        SetupError: It has not been fetched, or is unknown.
    """
    data_set = _data_set(name)
    path = _cached(data_set)
    if not _is_original(path, data_set):
        raise SetupError(f"{name} is not in {path.parent}; run: kairos traces fetch {name}")
    return path


def _data_set(name: str) -> DataSet:
    known = data_sets()
    if name not in known:
        raise SetupError(f"no data set is called '{name}'; choose one of: {', '.join(known)}")
    return known[name]


def _cached(data_set: DataSet) -> Path:
    home = os.environ.get("KAIROS_HOME")
    if home:
        return Path(home) / "traces" / data_set.file
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "kairos" / "traces" / data_set.file


def _is_original(path: Path, data_set: DataSet) -> bool:
    if not path.is_file() or path.stat().st_size != data_set.bytes:
        return False
    return sha256(path.read_bytes()).hexdigest() == data_set.sha256


def _find(name: str, data_set: DataSet, source: Path) -> Path:
    if source.is_file():
        return source
    if not source.is_dir():
        raise SetupError(f"--from {source}: no such file or directory")
    for directory in (source, *sorted(path for path in source.iterdir() if path.is_dir())):
        for file in (data_set.file, f"{data_set.file}.gz"):
            if (directory / file).is_file():
                return directory / file
    raise SetupError(
        f"{source} holds neither {data_set.file} nor {data_set.file}.gz; give the file itself: "
        f"kairos traces fetch {name} --from FILE"
    )


def _download(name: str, data_set: DataSet) -> Iterator[bytes]:
    end = time.monotonic() + DOWNLOAD_S
    try:
        # The URL is the catalogue's own, and what it leads to is held against the checksum.
        with urlopen(data_set.url, timeout=SILENCE_S) as response:  # noqa: S310
            while chunk := response.read1(CHUNK_BYTES):
                if time.monotonic() > end:
                    raise TimeoutError(f"not finished in {DOWNLOAD_S} s")
                yield chunk
    except (OSError, HTTPException) as error:
        raise SetupError(
            f"cannot download {name} from {data_set.url} ({error!r}); where there is no network, "
            f"bring the file and run: kairos traces fetch {name} --from PATH"
        ) from error


def _keep(data_set: DataSet, chunks: Iterator[bytes], origin: str, path: Path) -> None:
    """Put what has the right size and checksum into the cache; read no more than that size."""
    digest, size = sha256(), 0
    with atomic_write(path) as out:
        for chunk in chunks:
            size += len(chunk)
            if size > data_set.bytes:
                break
            digest.update(chunk)
            out.write(chunk)
        if (size, digest.hexdigest()) != (data_set.bytes, data_set.sha256):
            held = f"{size} bytes, SHA-256 {digest.hexdigest()}"
            raise InvalidFile(
                origin,
                f"not the original, which has {data_set.bytes} bytes, SHA-256 {data_set.sha256}; "
                f"this has {held if size <= data_set.bytes else 'more'}",
            )


class Percentiles(msgspec.Struct, frozen=True):
    p50: int
    p90: int
    p99: int
    max: int


class AppFigures(msgspec.Struct, frozen=True, kw_only=True):
    workflows: int
    calls: int
    prompt_tokens: Percentiles
    completion_tokens: Percentiles


class WorkflowFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a workflow file."""

    workflows: int
    calls: int
    apps: dict[str, AppFigures]


class TraceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a trace of arrivals."""

    arrivals: int
    seconds: float
    rate_per_s: float
    burstiness: Burstiness
    prompt_tokens: Percentiles
    completion_tokens: Percentiles


def describe_file(path: Path) -> WorkflowFigures | TraceFigures:
    """Describe a workflow file or an Azure trace.

    Raises:
        InvalidFile: It is neither, or has a malformed line.
    """
    _, first = next(read_lines(path), (0, b""))
    if not first:
        raise InvalidFile(path, "the file is empty")
    return _describe_trace(path) if is_trace(path) else _describe_workflows(path)


def _describe_workflows(path: Path) -> WorkflowFigures:
    workflows: defaultdict[str, set[str]] = defaultdict(set)
    prompts: defaultdict[str, array[int]] = defaultdict(lambda: array("q"))
    completions: defaultdict[str, array[int]] = defaultdict(lambda: array("q"))
    for call in read_workflows(path):
        workflows[call.app].add(call.workflow_id)
        prompts[call.app].append(call.prompt_tokens)
        completions[call.app].append(call.completion_tokens)
    return WorkflowFigures(
        workflows=len(set[str]().union(*workflows.values())),
        calls=sum(map(len, prompts.values())),
        apps={
            app: AppFigures(
                workflows=len(workflows[app]),
                calls=len(prompts[app]),
                prompt_tokens=_percentiles(prompts[app]),
                completion_tokens=_percentiles(completions[app]),
            )
            for app in sorted(workflows)
        },
    )


def _describe_trace(path: Path) -> TraceFigures:
    rows = read_trace(path)
    seconds = rows[-1].at_us / SECOND
    return TraceFigures(
        arrivals=len(rows),
        seconds=seconds,
        rate_per_s=(len(rows) - 1) / seconds,
        burstiness=measure_burstiness([row.at_us for row in rows]),
        prompt_tokens=_percentiles([row.prompt_tokens for row in rows]),
        completion_tokens=_percentiles([row.completion_tokens for row in rows]),
    )


def _percentiles(values: Sequence[int]) -> Percentiles:
    ordered = sorted(values)
    p50, p90, p99 = (round(percentile(ordered, percent)) for percent in (50, 90, 99))
    return Percentiles(p50, p90, p99, ordered[-1])
