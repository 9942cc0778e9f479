"""What is asked of an engine, how often, and what is told of its answers."""

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from kairos.core import (
    PLACEMENTS,
    Balancer,
    Instance,
    InstanceJoined,
    InstanceLeft,
    InstanceStatus,
    Runtime,
    UpstreamUnreachable,
)
from kairos.core.scheduler.policies import Fcfs
from kairos.engines import Monitor, engine_probe, monitor
from kairos.engines.engine_probe import LOOKS_BETWEEN, EngineProbe, NotReady, Target
from kairos.host import WallClock
from kairos.proxy import CallsInFlight, ConnectionBroke, Upstream
from kairos.settings import EngineSettings

MODELS = b'{"data":[{"id":"m"}]}'
CACHE = (
    b'vllm:cache_config_info{block_size="32",enable_prefix_caching="False",num_gpu_blocks="11"} 1'
)
RUNNING = b"\nvllm:num_requests_running 3"
PROPS = b'{"total_slots":4,"default_generation_settings":{"n_ctx":512}}'
SERVER_INFO = "/server_info?config_format=json"


def server_info(**scheduler):
    return json.dumps({"vllm_config": {"scheduler_config": scheduler}}).encode()


class Engine:
    """A fetcher that answers as a test says: bytes, a status, an error, or (None) not at all."""

    def __init__(self, **answers):
        self.answers = {"/health": b"", "/v1/models": MODELS} | answers
        self.asked = []

    async def get(self, upstream, path, query=""):
        target = f"{path}?{query}" if query else path
        self.asked.append(target)
        answer = self.answers.get(target, 404)
        match answer:
            case None:
                await asyncio.Event().wait()
            case Exception():
                raise answer
        return (answer, b"") if isinstance(answer, int) else (200, answer)

    def asked_since(self):
        asked, self.asked = self.asked, []
        return asked


def probe_of(**given):
    limits = {"max_num_seqs": 8, "kv_tokens": 900} | given
    return EngineProbe(target_of("i", **limits))


async def looks(asking, engine, number):
    return [await asking.probe(engine) for _ in range(number)]


async def test_what_vllm_tells_wins_and_the_operator_says_the_rest():
    engine = Engine(**{"/metrics": CACHE + RUNNING})
    seen = await probe_of(priority=True, token_us=250.5).probe(engine)
    assert seen.instance == Instance(
        id="i",
        models=("m",),
        max_num_seqs=8,
        kv_tokens=320,
        block_size=32,
        prefix_caching=False,
        priority=True,
        token_us=250.5,
    )
    assert seen.status == InstanceStatus("i", running=3)


@pytest.mark.parametrize("policy", ["priority", "fcfs"])
async def test_what_vllm_says_of_its_scheduling_wins(policy):
    told = server_info(policy=policy, max_num_seqs=24, max_num_batched_tokens=512)
    engine = Engine(**{"/metrics": CACHE, SERVER_INFO: told})
    instance = (await probe_of(priority=policy == "fcfs").probe(engine)).instance
    assert instance.priority == (policy == "priority")
    assert (instance.max_num_seqs, instance.max_num_batched_tokens) == (24, 512)


async def test_llama_tells_its_slots_and_has_no_priorities():
    engine = Engine(**{"/metrics": b"llamacpp:requests_deferred 2", "/props": PROPS})
    seen = await probe_of(priority=True).probe(engine)
    assert (seen.instance.max_num_seqs, seen.instance.kv_tokens) == (4, 2048)
    assert not seen.instance.priority
    assert seen.status == InstanceStatus("i", waiting=2)


SGLANG = b"""{"max_total_num_tokens":20480,"page_size":1,"disable_radix_cache":false,
"internal_states":[{"effective_max_running_requests_per_dp":128}]}"""


@pytest.mark.parametrize("metrics", [b"sglang:num_queue_reqs 2", 404])
async def test_sglang_tells_its_limits_whether_it_shows_metrics_or_not(metrics):
    engine = Engine(**{"/metrics": metrics, "/get_server_info": SGLANG})
    seen = await probe_of(priority=True).probe(engine)
    assert (seen.instance.max_num_seqs, seen.instance.kv_tokens) == (128, 20480)
    assert seen.instance.block_size == 1
    assert not seen.instance.priority
    assert "/props" in engine.asked or metrics != 404


async def test_an_engine_that_tells_nothing_is_as_the_operator_says():
    seen = await probe_of().probe(Engine())
    assert seen.instance == Instance(id="i", models=("m",), max_num_seqs=8, kv_tokens=900)
    assert seen.status is None


async def test_what_does_not_change_while_it_runs_is_asked_every_tenth_time():
    engine, asking = Engine(**{"/metrics": CACHE}), probe_of()
    always, seldom = ["/health", "/metrics"], ["/v1/models", SERVER_INFO]
    await looks(asking, engine, 1)
    assert engine.asked_since() == always + seldom
    await looks(asking, engine, LOOKS_BETWEEN - 1)
    assert engine.asked_since() == always * (LOOKS_BETWEEN - 1)
    await looks(asking, engine, 1)
    assert engine.asked_since() == always + seldom


async def test_an_engine_that_was_gone_is_asked_all_anew():
    engine, asking = Engine(**{"/metrics": b"", "/props": PROPS}), probe_of()
    await looks(asking, engine, 2)
    engine.answers["/props"] = 404
    asking.forget_limits()
    [seen] = await looks(asking, engine, 1)
    assert (seen.instance.max_num_seqs, seen.instance.kv_tokens) == (8, 900)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (CACHE, CACHE.replace(b"11", b"12")),
        (
            b"process_start_time_seconds 1.5e9\n" + CACHE,
            b"process_start_time_seconds 2e9\n" + CACHE,
        ),
    ],
)
async def test_another_process_at_the_same_place_is_asked_all_anew_at_once(before, after):
    told = server_info(policy="priority")
    engine, asking = Engine(**{"/metrics": before, SERVER_INFO: told}), probe_of()
    [*_, seen] = await looks(asking, engine, 3)
    assert seen.instance.priority
    engine.answers |= {"/metrics": after, SERVER_INFO: 404}
    [seen] = await looks(asking, engine, 1)
    assert not seen.instance.priority
    assert seen.instance.kv_tokens == (352 if b"12" in after else 320)


@pytest.mark.parametrize(
    "trouble", [500, None, ConnectionBroke(), ConnectionResetError(), TimeoutError()]
)
async def test_a_scrape_that_fails_tells_nothing_and_takes_nothing_back(monkeypatch, trouble):
    monkeypatch.setattr(engine_probe, "SCRAPE_S", 0.01)
    engine, asking = Engine(**{"/metrics": CACHE + RUNNING}), probe_of()
    [before] = await looks(asking, engine, 1)
    engine.answers["/metrics"] = trouble
    for seen in await looks(asking, engine, 2 * LOOKS_BETWEEN):
        assert seen.instance == before.instance
        assert seen.status is None
    engine.answers["/metrics"] = CACHE + RUNNING
    assert (await looks(asking, engine, 1))[0].status == before.status


async def test_a_text_that_is_cut_off_at_its_bound_tells_nothing(monkeypatch):
    monkeypatch.setattr(engine_probe, "MAX_FETCHED_BYTES", 60)
    engine = Engine(**{"/metrics": RUNNING * 2})
    assert (await probe_of().probe(engine)).status == InstanceStatus("i", running=6)
    engine.answers["/metrics"] = RUNNING * 3
    assert (await probe_of().probe(engine)).status is None


async def test_an_engine_that_is_new_is_not_used_before_its_metrics_have_come():
    with pytest.raises(TimeoutError):
        await probe_of().probe(Engine(**{"/metrics": TimeoutError()}))


async def test_what_vllm_takes_long_to_say_of_itself_is_asked_again_and_kept(monkeypatch):
    monkeypatch.setattr(engine_probe, "SCRAPE_S", 0.01)
    engine, asking = Engine(**{"/metrics": CACHE, SERVER_INFO: None}), probe_of()
    [seen] = await looks(asking, engine, 1)
    assert not seen.instance.priority
    engine.answers[SERVER_INFO] = server_info(policy="priority")
    [*_, seen] = await looks(asking, engine, LOOKS_BETWEEN)
    assert seen.instance.priority
    engine.answers[SERVER_INFO] = None
    assert all(s.instance.priority for s in await looks(asking, engine, 2 * LOOKS_BETWEEN))


@pytest.mark.parametrize(
    ("path", "answer", "problem"),
    [
        ("/health", 503, "/health answered 503"),
        ("/v1/models", 401, "/v1/models answered 401"),
        ("/v1/models", b"{}", "/v1/models names no model"),
    ],
)
async def test_an_engine_that_cannot_serve_is_not_ready(path, answer, problem):
    with pytest.raises(NotReady, match=problem):
        await probe_of().probe(Engine(**{path: answer}))


class Watched:
    """A monitor of one engine, looked at as fast as can be."""

    def __init__(self, engine, monkeypatch):
        self.engine, self.told, self._changed = engine, [], asyncio.Event()
        monkeypatch.setattr(monitor, "INTERVAL_S", 0.001)
        monkeypatch.setattr(monitor, "Fetcher", asynccontextmanager(self._fetching))
        self.monitor = Monitor(self._hear)
        self.monitor.watch(target_of("i"))

    async def _fetching(self, *_):
        yield self.engine

    def _hear(self, event):
        self.told.append(event)
        self._changed.set()

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not condition(self.told):
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
async def watched(monkeypatch):
    made = Watched(Engine(**{"/metrics": CACHE + RUNNING}), monkeypatch)
    task = asyncio.create_task(made.monitor.run())
    yield made
    task.cancel()
    await asyncio.wait([task])


async def test_how_an_instance_does_is_told_once_it_has_joined_with_each_look(watched):
    await watched.until(lambda told: len(told) >= 5)
    joined, *told = watched.told
    assert isinstance(joined, InstanceJoined)
    assert set(map(type, told)) == {InstanceStatus}
    watched.engine.answers["/metrics"] = CACHE + RUNNING.replace(b"3", b"4")
    await watched.until(lambda told: told[-1].running == 4)


async def test_after_trouble_all_is_asked_anew_at_once(watched, monkeypatch):
    monkeypatch.setattr(monitor, "INTERVAL_S", 1000)
    await watched.until(lambda told: len(told) >= 2)
    async with asyncio.timeout(60):
        while watched.engine.asked_since():  # the look after the change
            await asyncio.sleep(0.01)
    watched.monitor.probe_after_failure(UpstreamUnreachable("i", "a test", refused=False))
    number = len(watched.told)
    await watched.until(lambda told: len(told) > number)
    assert watched.engine.asked_since() == ["/health", "/metrics", "/v1/models", SERVER_INFO]


async def test_how_an_instance_does_that_is_gone_is_not_told(watched):
    watched.engine.answers[SERVER_INFO] = server_info(max_num_seqs=3)
    await watched.until(lambda told: len(told) >= 2)
    watched.engine.answers["/health"] = 503
    await watched.until(lambda told: isinstance(told[-1], InstanceLeft))
    looked = len(watched.engine.asked)
    async with asyncio.timeout(60):
        while len(watched.engine.asked) < looked + 5:
            await asyncio.sleep(0.001)
    assert isinstance(watched.told[-1], InstanceLeft)

    watched.engine.answers |= {"/health": b"", SERVER_INFO: server_info(max_num_seqs=5)}
    await watched.until(lambda told: isinstance(told[-1], InstanceStatus))
    assert watched.told[-2].instance.max_num_seqs == 5  # it may have been another process


def target_of(name, **given):
    url = f"http://{name}"
    return Target(Upstream(name, url), EngineSettings(url=url, **{"max_num_seqs": 8} | given))


async def test_an_instance_can_be_watched_while_it_runs(watched):
    await watched.until(lambda told: told)
    watched.monitor.watch(target_of("j"))
    assert watched.monitor.problems == {"j": "not probed yet"}
    await watched.until(lambda told: InstanceStatus("j", running=3) in told)
    joined = [each.instance.id for each in watched.told if isinstance(each, InstanceJoined)]
    assert joined == ["i", "j"]
    assert watched.monitor.problems == {}


async def test_looks_at_many_are_spread_over_the_interval(watched, monkeypatch):
    monkeypatch.setattr(monitor, "INTERVAL_S", 0.4)
    for number in range(8):
        watched.monitor.watch(target_of(f"j{number}"))
    second_at = {}

    def have_been_seen_twice(told):
        looks = Counter(each.instance_id for each in told if isinstance(each, InstanceStatus))
        for name, count in looks.items():
            if name != "i" and count == 2:
                second_at.setdefault(name, asyncio.get_running_loop().time())
        return len(second_at) == 8

    await watched.until(have_been_seen_twice)
    assert max(second_at.values()) - min(second_at.values()) > 0.2


async def test_one_that_is_forgotten_has_left_and_is_not_looked_at(watched):
    await watched.until(lambda told: len(told) >= 2)
    watched.monitor.stop_watching("i")
    assert watched.told[-1] == InstanceLeft("i", drained=True)
    assert watched.monitor.models() == []
    number = len(watched.told)
    watched.monitor.probe_after_failure(
        UpstreamUnreachable("i", "a call that still ran", refused=True)
    )
    watched.monitor.watch(target_of("j"))
    await watched.until(lambda told: len(told) > number + 5)
    assert "i" not in {getattr(each, "instance_id", "") for each in watched.told[number:]}
    watched.monitor.stop_watching("j")
    watched.monitor.watch(target_of("i"))
    number = len(watched.told)
    await watched.until(lambda told: len(told) > number)
    assert isinstance(watched.told[number], InstanceJoined)


async def test_one_that_never_joined_leaves_nothing_when_it_is_forgotten(watched):
    watched.engine.answers["/health"] = 503
    watched.monitor.watch(target_of("j"))
    watched.monitor.stop_watching("j")
    assert "j" not in watched.monitor.problems
    assert not any(isinstance(each, InstanceLeft) for each in watched.told)


async def test_one_that_is_watched_as_something_else_stays_until_it_has_answered(watched):
    watched.engine.answers["/metrics"] = b""  # it tells nothing of itself
    await watched.until(lambda told: told)
    joined = [each for each in watched.told if isinstance(each, InstanceJoined)]
    watched.monitor.watch(target_of("i", max_num_seqs=5))
    assert watched.monitor.problems == {}
    await watched.until(
        lambda told: isinstance(told[-1], InstanceJoined) and told[-1] not in joined
    )
    assert watched.told[-1].instance.max_num_seqs == 5
    assert not any(isinstance(each, InstanceLeft) for each in watched.told)


async def test_a_monitor_that_has_ended_begins_nothing(watched, monkeypatch):
    monkeypatch.setattr(monitor, "INTERVAL_S", 0.001)
    made = Monitor(watched._hear)
    running = asyncio.create_task(made.run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    made.watch(target_of("late"))
    made.stop_watching("late")
    assert made.problems == {}


async def test_what_a_look_does_not_show_is_not_told_again(watched):
    await watched.until(lambda told: len(told) >= 2)
    watched.engine.answers["/metrics"] = 500
    looked, told = len(watched.engine.asked), len(watched.told)
    async with asyncio.timeout(60):
        while len(watched.engine.asked) < looked + 10:
            await asyncio.sleep(0.001)
    assert len(watched.told) <= told + 1  # of the look that was under way
    assert not any(isinstance(each, InstanceLeft) for each in watched.told)


@pytest.mark.parametrize("steps", range(6))
async def test_a_suspicion_at_the_moment_of_the_end_does_not_keep_the_monitor_alive(steps):
    upstream = Upstream("nowhere", "http://127.0.0.1:9")
    balancer = Balancer(Fcfs, PLACEMENTS["least-kv"])
    runtime = Runtime(balancer, CallsInFlight(), WallClock())
    monitor = Monitor(runtime.feed)
    monitor.watch(Target(upstream, EngineSettings(url="http://127.0.0.1:9")))
    running = asyncio.create_task(monitor.run())
    while monitor.problems["nowhere"] == "not probed yet":
        await asyncio.sleep(0)
    await asyncio.sleep(0)

    monitor.probe_after_failure(UpstreamUnreachable("nowhere", "a test", refused=False))
    for _ in range(steps):
        await asyncio.sleep(0)
    running.cancel()

    done, _ = await asyncio.wait([running], timeout=60)
    assert done, "the monitor goes on"
