"""`kairos calibrate` against engines: what it writes, and which it refuses."""

import asyncio
import json

import msgspec
import pytest
from aiohttp import web

from kairos.core import SetupError
from kairos.engines import load_profile
from kairos.proxy import Upstream
from kairos.simulate import calibrate, measured_engine
from kairos.simulate.standin import server as standins
from kairos.simulate.standin.batch import INSTANT, Timing
from tests.e2e.client import LIMIT_S
from tests.support.cli.command import invoke

BRIEF = calibrate.CalibrationPlan(rounds=1, decode_s=0.05, mixed_s=0.2, longest_run_s=1.0)
TIMING = Timing(step_s=0.001, step_per_seq_s=0.0, prefill_tokens_per_s=1e6)
SETTINGS = standins.StandInSettings(
    max_model_len=256, kv_tokens=4096, max_num_seqs=8, timing=TIMING
)


@pytest.fixture(autouse=True)
def brief(monkeypatch, tmp_path):
    monkeypatch.setattr(calibrate, "QUICK_CALIBRATION", BRIEF)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
async def engine():
    async with standins.serve(SETTINGS) as standin:
        yield standin


async def command(*engines, options=()):
    """The command's result; it has a thread and a loop of its own."""
    urls = [word for url in engines for word in ("--engine", url)]
    words = ["calibrate", *urls, "--quick", "--max-num-seqs", "8", *options]
    async with asyncio.timeout(LIMIT_S):
        return await asyncio.to_thread(invoke, *words)


async def refused(*engines, options=()):
    """Why the command does not do it; nothing is written."""
    result = await command(*engines, options=(*options, "--output", "nothing.toml"))
    assert isinstance(result.exception, SetupError), result.output
    with pytest.raises(SetupError, match="No such file"):
        load_profile("./nothing.toml")
    return str(result.exception)


async def test_a_profile_is_written_that_can_be_read_and_says_how_it_came_about(engine):
    async with standins.serve(SETTINGS) as other:
        result = await command(engine.url, other.url, options=("--name", "two-stand-ins"))
    assert result.exit_code == 0, result.output
    assert "prompts alone" in result.output
    assert "wrote two-stand-ins.toml" in result.output
    assert "warming up" in result.stderr
    assert "warming up" not in result.stdout
    written = load_profile("./two-stand-ins.toml")
    assert written.name == "two-stand-ins"
    assert written.measured
    assert (written.max_model_len, written.max_num_seqs, written.block_size) == (256, 8, 16)
    assert written.kv_tokens == 4096
    assert written.step.fixed_us > 0
    for told in ("2 x standin", "mixed", "decode at", "R2 of the times"):
        assert told in written.source
    assert min(engine.finished, other.finished) > 50


async def test_answers_that_come_whole_are_measured_by_the_tokens_of_one_that_is_streamed(engine):
    streams = []
    whole = measured_engine.MeasuredEngine.generate

    async def generate(self, call):
        streams.append(call.streamed)
        await whole(self, call)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured_engine.MeasuredEngine, "generate", generate)
        result = await command(engine.url, options=("--unstreamed", "--name", "whole"))
    assert result.exit_code == 0, result.output
    written = load_profile("./whole.toml")
    assert "answers came whole" in written.source
    assert "mixed" in written.source
    assert "decode at" in written.source
    assert written.step.fixed_us > 0
    assert streams.count(False) > streams.count(True) > 0


async def test_as_json_it_prints_profile_and_fit_and_nothing_else(engine):
    result = await command(engine.url, options=("--json", "--scheduling", "priority"))
    told = json.loads(result.stdout)
    assert told["profile"]["scheduling"] == "priority"
    assert told["profile"]["step"] == pytest.approx(
        msgspec.structs.asdict(load_profile("./standin.toml").step), rel=1e-4
    )
    assert set(told["fit"]["groups"]) >= {"prompts alone", "mixed"}


async def test_an_engine_whose_tokens_all_come_at_once_gets_a_profile_too():
    instant = msgspec.structs.replace(SETTINGS, timing=INSTANT)
    async with standins.serve(instant) as engine:
        result = await command(engine.url)
    assert result.exit_code == 0, result.output


async def test_a_calibration_that_is_broken_off_leaves_the_engine_idle(engine):
    upstream = Upstream("engine", engine.url)
    asked = calibrate.CalibrationOptions(
        engines=[engine.url], max_num_seqs=8, max_num_batched_tokens=2048
    )
    under_way = asyncio.Event()

    def tell(line):
        if "at once" in line:
            under_way.set()

    work = asyncio.create_task(calibrate.measure_engines([upstream], asked, BRIEF, tell))
    async with asyncio.timeout(LIMIT_S):
        await under_way.wait()
        await engine.until(lambda each: each.batch.running or each.batch.waiting)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await engine.until(lambda each: not (each.batch.running or each.batch.waiting))


@pytest.mark.parametrize("output", ["here", "nowhere/mine.toml", "file/mine.toml"])
async def test_where_nothing_can_be_written_nothing_is_measured(engine, tmp_path, output):
    (tmp_path / "here").mkdir()
    (tmp_path / "file").write_text("")
    result = await command(engine.url, options=("--output", output))
    assert isinstance(result.exception, SetupError)
    assert "cannot write" in str(result.exception)
    assert engine.finished == 0


async def test_an_engine_that_says_nothing_is_refused_with_what_happened(monkeypatch):
    async def silent(reader, writer):
        await reader.read()  # until the client is gone
        writer.close()
        await writer.wait_closed()

    monkeypatch.setattr(measured_engine, "SILENCE_S", 0.05)
    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        said = await refused(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert "cannot be reached: TimeoutError" in said


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        pytest.param("http://127.0.0.1:1", (), "cannot be reached", id="an engine not there"),
        pytest.param("localhost", (), "takes the URL of an engine", id="no URL"),
        pytest.param(None, ("--name", "../x"), "--name takes", id="a name that makes no file"),
        pytest.param(
            None, ("--api-key-env", "KAIROS_NO_KEY"), "KAIROS_NO_KEY is not set", id="no such key"
        ),
        pytest.param(
            None, ("--model", "llama"), "not serve 'llama'; it serves standin", id="another model"
        ),
    ],
)
async def test_what_names_no_engine_is_refused(engine, url, options, says):
    assert says in await refused(url or engine.url, options=options)


async def test_an_engine_that_works_for_others_is_refused(engine):
    engine.batch.pause()
    with engine.batch.call(10, ["a", "b"]):
        assert "busy with 1 calls" in await refused(engine.url)


async def test_engines_that_serve_different_models_are_refused(engine):
    async with standins.serve(msgspec.structs.replace(SETTINGS, model="other")) as other:
        said = await refused(engine.url, other.url)
    assert "differ in model" in said


class Odd:
    """A server that does what a test says."""

    def __init__(self):
        self.url = ""
        self.models = {"data": [{"id": "odd", "max_model_len": 256}]}
        self.metrics = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="256"} 1.0\n'
        self.answer = lambda: web.Response(status=500)

    async def serve(self, request):
        match request.path:
            case "/v1/models":
                return web.json_response(self.models)
            case "/metrics":
                return web.Response(text=self.metrics)
            case "/v1/completions":
                made = self.answer
                return await made(request) if asyncio.iscoroutinefunction(made) else made()
        return web.Response(status=404)


@pytest.fixture
async def odd():
    server = Odd()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.serve)
    runner = web.AppRunner(application, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()


def stream(*events):
    return web.Response(
        text="".join(f"data: {event}\n\n" for event in events), content_type="text/event-stream"
    )


TEXT = '{"choices":[{"text":"a"}]}'


def usage(prompt, completion):
    counted = {"prompt_tokens": prompt, "completion_tokens": completion}
    return json.dumps({"choices": [], "usage": counted})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        pytest.param({"models": {"hello": "world"}}, "names no model", id="no engine"),
        pytest.param(
            {"answer": lambda: web.Response(status=400, text="prompt must be a string")},
            "status 400: prompt must be a string",
            id="takes no token ids",
        ),
        pytest.param(
            {"answer": lambda: stream(TEXT, usage(2, 7), "[DONE]")},
            "made 2 + 7 tokens of a call of 2 + 1: it must take token ids",
            id="ignores min_tokens",
        ),
        pytest.param(
            {"answer": lambda: stream(TEXT, "[DONE]")}, "no count of tokens", id="counts no tokens"
        ),
        pytest.param(
            {"answer": lambda: stream(TEXT, usage(2, 1), '{"error":{"message":"oom"}}', "[DONE]")},
            "oom",
            id="breaks off with an error",
        ),
        pytest.param(
            {"answer": lambda: stream(TEXT, usage(2, 1))}, "no [DONE]", id="breaks a stream off"
        ),
        pytest.param({"blocks": "1"}, "kv-tokens", id="holds one block"),
        pytest.param({"blocks": "2"}, "kv-tokens", id="holds two blocks"),
        pytest.param({"metrics": ""}, "say it with --kv-tokens", id="does not tell its memory"),
        pytest.param(
            {"metrics": "", "models": {"data": [{"id": "odd"}]}},
            "say it with --max-model-len",
            id="does not tell its context",
        ),
    ],
)
async def test_an_odd_engine_is_refused_with_what_is_wrong(odd, fields, says):
    if blocks := fields.get("blocks"):
        fields = {"metrics": odd.metrics.replace("256", blocks)}
    for name, value in fields.items():
        setattr(odd, name, value)
    assert says in await refused(odd.url)


async def test_tokens_are_counted_wherever_an_answer_is_cut(odd):
    events = [TEXT] * 4 + [usage(3, 4), "[DONE]"]
    content = "".join(f"data: {event}\n\n" for event in events).encode()

    async def in_pieces(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for at in range(0, len(content), 3):
            await response.write(content[at : at + 3])
            await asyncio.sleep(0)
        return response

    odd.answer = in_pieces
    async with measured_engine.session() as session:
        call = measured_engine.Generated(3, 4)
        await measured_engine.MeasuredEngine(session, Upstream("odd", odd.url)).generate(call)
    assert len(call.events_at) == 4


async def test_what_an_engine_tells_is_read_to_its_end_and_only_where_it_is_a_number(odd):
    lines = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="256"} 1.0\n'
    odd.metrics = "# of no interest\n" * 200_000 + lines + "vllm:num_requests_running NaN\n"
    async with measured_engine.session() as session:
        probe = measured_engine.MeasuredEngine(session, Upstream("odd", odd.url))
        assert (await probe.facts(None)).kv_tokens == 255 * 16
        odd.metrics = lines.replace("256", "\N{SUPERSCRIPT TWO}")
        assert (await probe.facts(None)).kv_tokens is None
        odd.metrics = "vllm:num_requests_waiting 3.0\n"
        with pytest.raises(SetupError, match="busy with 3 calls"):
            await probe.facts(None)


async def test_an_engine_that_tells_of_its_latest_step_alone_is_made_to_take_another(odd):
    """As vLLM does, when all calls of that step were cancelled after it."""
    idle, odd.metrics = odd.metrics, odd.metrics + "vllm:num_requests_running 3.0\n"

    def step():
        odd.metrics = idle
        return stream(TEXT, usage(1, 1), "[DONE]")

    odd.answer = step
    async with measured_engine.session() as session:
        await measured_engine.MeasuredEngine(session, Upstream("odd", odd.url)).idle()
    assert odd.metrics == idle


async def test_somebody_who_comes_meanwhile_is_noticed(engine, monkeypatch):
    monkeypatch.setattr(measured_engine, "IDLE_PROBES", 2)
    upstream = Upstream("engine", engine.url)
    async with measured_engine.session() as session:
        probe = measured_engine.MeasuredEngine(session, upstream)
        await probe.idle()
        engine.batch.pause()
        with engine.batch.call(10, ["a"]), pytest.raises(SetupError, match="nobody else uses"):
            await probe.idle()
