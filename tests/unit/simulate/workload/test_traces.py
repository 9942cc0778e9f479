"""The catalogue of data sets, fetching with a check, and what `describe` says of a file."""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kairos.core import InvalidFile, SetupError
from kairos.simulate import FileCall, data_sets, describe_file, fetch_data_set
from kairos.simulate.workload import traces
from kairos.simulate.workload.traces import DataSet, Percentiles, TraceFigures, fetched_data_set
from kairos.simulate.workload.workflow_file import write_workflows

ORIGINAL = b"the original\n" * 100


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("KAIROS_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "traces"


class Web(ThreadingHTTPServer):
    """Answers every request with one status and body, again and again if it is endless."""

    status = b"HTTP/1.0 200 OK"
    body = ORIGINAL
    endless = False
    asked = 0


class Page(BaseHTTPRequestHandler):
    server: Web

    def do_GET(self) -> None:
        self.server.asked += 1
        with suppress(ConnectionError):  # the client leaves when it has read enough
            self.wfile.write(self.server.status + b"\r\n\r\n" + self.server.body)
            while self.server.endless:
                self.wfile.write(self.server.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web(monkeypatch) -> Iterator[Web]:
    """A server with the one data set of a small catalogue, named `small`."""
    monkeypatch.setenv("no_proxy", "*")
    with Web(("127.0.0.1", 0), Page) as server:
        small = DataSet(
            file="small.txt",
            what="a small one",
            url=f"http://127.0.0.1:{server.server_port}/some/other-name.txt",
            bytes=len(ORIGINAL),
            sha256=sha256(ORIGINAL).hexdigest(),
            rows=100,
            licence="none",
        )
        monkeypatch.setattr(traces, "data_sets", lambda: {"small": small})
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_catalogue_agrees_with_the_manifest_of_the_data(data):
    manifest = json.loads((data / "MANIFEST.json").read_text())
    facts = ("url", "bytes", "sha256", "rows", "licence")
    told = {Path(e["file"]).stem: [e[fact] for fact in facts] for e in manifest if "url" in e}

    assert {
        data_set.file: [getattr(data_set, fact) for fact in facts]
        for data_set in data_sets().values()
    } == told


def test_a_download_is_checked_kept_and_not_made_twice(web, cache):
    path = fetch_data_set("small")

    assert path == cache / "small.txt"
    assert path.read_bytes() == ORIGINAL
    assert fetch_data_set("small") == fetched_data_set("small") == path
    assert web.asked == 1


def test_what_was_damaged_in_the_cache_is_fetched_again(web):
    path = fetch_data_set("small")
    path.write_bytes(ORIGINAL.swapcase())

    with pytest.raises(SetupError, match="run: kairos traces fetch small"):
        fetched_data_set("small")
    assert fetch_data_set("small").read_bytes() == ORIGINAL
    assert web.asked == 2


def test_a_download_without_end_is_left_when_it_is_too_long(web, cache):
    web.endless = True

    with pytest.raises(InvalidFile, match="this has more"):
        fetch_data_set("small")
    assert list(cache.iterdir()) == []


def test_a_download_that_takes_too_long_is_given_up(web, cache, monkeypatch):
    monkeypatch.setattr(traces, "DOWNLOAD_S", -1)

    with pytest.raises(SetupError, match=r"cannot download small .*not finished in -1 s"):
        fetch_data_set("small")
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("file", ["small.txt", "small.txt.gz", "sub/small.txt", "sub/small.txt.gz"])
def test_a_directory_is_searched_for_the_file_plain_or_gzip(web, tmp_path, file):
    place = tmp_path / "from" / file
    place.parent.mkdir(parents=True)
    place.write_bytes(gzip.compress(ORIGINAL) if place.suffix == ".gz" else ORIGINAL)

    assert fetch_data_set("small", tmp_path / "from").read_bytes() == ORIGINAL
    assert fetch_data_set("small", tmp_path / "from") == fetched_data_set("small")
    assert web.asked == 0


@pytest.mark.parametrize("content", [ORIGINAL, gzip.compress(ORIGINAL, mtime=0)])
def test_a_file_given_itself_may_have_any_name(web, tmp_path, content):
    (tmp_path / "download").write_bytes(content)

    assert fetch_data_set("small", tmp_path / "download").read_bytes() == ORIGINAL


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (ORIGINAL.swapcase(), "download: not the original"),
        (gzip.compress(b"\0" * 50_000_000, mtime=0), "download: not the original.*this has more"),
        (gzip.compress(ORIGINAL, mtime=0)[:-9], "download: cannot be read"),
    ],
)
def test_a_local_file_that_is_not_the_original_is_not_kept(web, cache, tmp_path, content, problem):
    (tmp_path / "download").write_bytes(content)

    with pytest.raises(InvalidFile, match=problem):
        fetch_data_set("small", tmp_path / "download")
    assert list(cache.iterdir()) == []


def test_a_directory_without_the_file_and_a_path_to_nothing_are_told_apart(web, tmp_path):
    (tmp_path / "empty").mkdir()

    with pytest.raises(SetupError, match=r"holds neither small\.txt nor small\.txt\.gz"):
        fetch_data_set("small", tmp_path / "empty")
    with pytest.raises(SetupError, match=r"--from .*none: no such file"):
        fetch_data_set("small", tmp_path / "none")


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(SetupError, match="no data set is called 'x'; choose one of: azure-code, "):
        fetch_data_set("x")


def test_a_cache_that_cannot_be_made_says_how_to_choose_another(web, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KAIROS_HOME", str(tmp_path / "file"))

    with pytest.raises(SetupError, match="set KAIROS_HOME"):
        fetch_data_set("small")


def test_the_cache_is_where_the_environment_says(web, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "me"))

    assert fetch_data_set("small") == tmp_path / "home" / "traces" / "small.txt"
    monkeypatch.delenv("KAIROS_HOME")
    assert fetch_data_set("small") == tmp_path / "xdg" / "kairos" / "traces" / "small.txt"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert fetch_data_set("small") == tmp_path / "me" / ".cache" / "kairos" / "traces" / "small.txt"


def call(workflow: str, app: str, prompt: int) -> FileCall:
    return FileCall(
        workflow_id=workflow,
        app=app,
        agent="a",
        upstream=None,
        call_index=0,
        prompt_tokens=prompt,
        completion_tokens=2 * prompt,
    )


def test_percentiles_lie_between_the_two_nearest_values(tmp_path):
    path = tmp_path / "w.jsonl"
    write_workflows(path, [call("w1", "qa", n) for n in (100, 300)])

    assert describe_file(path).apps["qa"].prompt_tokens == Percentiles(200, 280, 298, 300)


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_an_empty_file_has_no_description(tmp_path, content):
    (tmp_path / "empty").write_bytes(content)

    with pytest.raises(InvalidFile, match="empty: the file is empty"):
        describe_file(tmp_path / "empty")


def test_another_kind_of_file_has_no_description(tmp_path):
    (tmp_path / "notes.txt").write_text("hello\n")

    with pytest.raises(InvalidFile, match=r"notes\.txt:1: "):
        describe_file(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    ("name", "arrivals", "rate", "prompt", "completion"),
    [
        ("azure-conv", 19_366, 5.53, (1020, 2734, 4142, 14050), (129, 424, 601, 1000)),
        ("azure-code", 8_819, 2.57, (1469, 5188, 7436, 7437), (13, 55, 251, 1899)),
    ],
)
def test_real_traces_are_fetched_and_described(data, name, arrivals, rate, prompt, completion):
    figures = describe_file(fetch_data_set(name, data))

    assert isinstance(figures, TraceFigures)
    assert figures.arrivals == arrivals == data_sets()[name].rows
    assert figures.rate_per_s == pytest.approx(rate, abs=0.005)
    assert figures.seconds == pytest.approx(arrivals / rate, rel=0.005)
    assert figures.prompt_tokens == Percentiles(*prompt)
    assert figures.completion_tokens == Percentiles(*completion)
    assert figures.burstiness["cv"] == pytest.approx({5.53: 1.09, 2.57: 13.15}[rate], rel=0.005)


def test_recorded_workflows_of_real_agents_are_described(data):
    figures = describe_file(data / "agentic_workflows.jsonl.gz")

    assert (figures.workflows, figures.calls) == (1_060, 50_977)
    assert {name: (app.workflows, app.calls) for name, app in figures.apps.items()} == {
        "ag2_captain_gaia": (126, 670),
        "claude_code": (676, 44_731),
        "magentic_one_gaia": (58, 1_632),
        "tau_bench_airline": (200, 3_944),
    }
