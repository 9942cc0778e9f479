"""What was learnt, kept in a file: what goes in comes out, and no file stops a start."""

import asyncio
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.cluster import read_part
from kairos.core import (
    FEATURES,
    QUANTILES,
    AgentProfile,
    AgentRank,
    Distribution,
    InvalidRequest,
    JoinPlace,
    ProfilesLearnt,
    Record,
    RemainingModel,
    SetupError,
)
from kairos.core.learnt import Sighting
from kairos.observe import LearntStore, store
from tests.support.loop_clock import moved_clock, turns


def profile(agent="a", *, tenant="t", app="app", samples=4, mean=2.0):
    distribution = Distribution(mean, (1.0,) * (QUANTILES // 2) + (3.0,) * (QUANTILES // 2))
    return AgentProfile(
        tenant=tenant,
        app=app,
        agent=agent,
        samples=samples,
        converged=True,
        call_us=distribution,
        completion_tokens=distribution,
        remaining_us=distribution,
        remaining_stages=1.5,
    )


def model(app="app", *, samples=9):
    return RemainingModel(
        tenant="t",
        app=app,
        samples=samples,
        intercept=1.0,
        weights=(0.5,) * FEATURES,
        lowest=(0.0,) * FEATURES,
        highest=(1.0,) * FEATURES,
        agents={"a": 0.25},
        residuals=(-1.0, 1.0),
    )


def place(agent="j", app="app", sightings=4, **of):
    fields = {"after_us": 5, "others": (("c", -3),), "branch": "b", "choices": 0.5} | of
    seen = Sighting(agent=agent, caller="a", **fields)
    return JoinPlace(
        tenant="t", app=app, agent=agent, caller="a", seen=9, sightings=(seen,) * sightings
    )


def publish(kept, **learnt):
    kept(Record(1, ProfilesLearnt(**learnt)))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "learnt.json"


def test_what_was_published_is_known_after_a_restart(path):
    kept = LearntStore(path)
    ranks = (AgentRank("t", "app", "a", 0.5), AgentRank("t", "app", "b", 0.75))
    publish(kept, profiles=(profile("a"), profile("b")), models=(model(),))
    publish(kept, ranks=ranks, kendall_tau=0.75)
    kept.save()

    assert LearntStore(path).read() == ProfilesLearnt(
        (profile("a"), profile("b")), (model(),), ranks, kendall_tau=0.75
    )


def test_where_calls_join_is_known_after_a_restart_and_what_is_forgotten_is_not(path):
    kept = LearntStore(path)
    publish(kept, joins=(place("x"), place("y"), place("z", app="other")))
    publish(kept, joins=(place("y", sightings=7), place("x", sightings=0)))
    kept.save()
    assert LearntStore(path).read().joins == (place("z", app="other"), place("y", sightings=7))


def test_joins_are_within_the_limit_of_the_file_too(path):
    size = len(msgspec.json.encode(place("x0")))
    kept = LearntStore(path, limit_bytes=3 * size)
    publish(kept, joins=tuple(place(f"x{n}") for n in range(8)))
    kept.save()
    assert [each.agent for each in LearntStore(path).read().joins] == ["x5", "x6", "x7"]


@pytest.mark.parametrize(
    "wrong",
    [
        place("x" * 200),
        place(sightings=65),
        place(after_us=10**30),
        place(others=(("c" * 200, 1),)),
        place(others=(("c", 10**30),)),
        place(others=(("c", 1),) * 10_001),
        place(branch="b" * 200),
        place(choices=1e30),
    ],
)
def test_joins_that_nothing_learns_are_put_aside_and_left_out_of_the_topic(path, wrong):
    kept = LearntStore(path)
    publish(kept, joins=(wrong,))
    kept.save()
    assert LearntStore(path).read() is None
    key = msgspec.json.encode(("join", *wrong.key)).decode()
    with pytest.raises(InvalidRequest):
        read_part(key, msgspec.json.encode(ProfilesLearnt(joins=(wrong,))))


def test_a_place_is_a_part_of_the_topic():
    key = msgspec.json.encode(("join", *place().key)).decode()
    part = ProfilesLearnt(joins=(place(),))
    assert read_part(key, msgspec.json.encode(part)) == part
    assert read_part(key, None) == ProfilesLearnt()
    with pytest.raises(ValueError, match="not the part"):
        read_part(key, msgspec.json.encode(ProfilesLearnt(joins=(place("other"),))))


def test_what_the_orchestrator_forgot_is_not_kept_either(path):
    size = 2 * len(msgspec.json.encode(profile("a"))) + 2 * len(msgspec.json.encode(model()))
    kept = LearntStore(path, limit_bytes=size)
    publish(kept, profiles=(profile("a"), profile("b")), models=(model(), model("gone")))
    publish(kept, ranks=(AgentRank("t", "app", "a", 0.5), AgentRank("t", "app", "b", 0.75)))
    publish(kept, forgotten=(("t", "app", "a"), ("t", "gone", "*")))
    publish(kept, profiles=(profile("c"),))  # there is room again
    kept.save()

    read = LearntStore(path).read()
    assert [each.agent for each in read.profiles] == ["b", "c"]
    assert [each.agent for each in read.ranks] == ["b"]
    assert read.models == (model(),)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.integers(1, 99))))
def test_the_last_that_was_said_of_each_agent_is_what_is_read(said):
    with TemporaryDirectory() as directory:
        path = Path(directory, "learnt.json")
        kept = LearntStore(path)
        for tenant, agent, samples in said:
            publish(kept, profiles=(profile(agent, tenant=tenant, samples=samples),))
        kept.save()
        read = LearntStore(path).read()

    last = {(tenant, agent): samples for tenant, agent, samples in said}
    known = read.profiles if read is not None else ()
    assert {(each.tenant, each.agent): each.samples for each in known} == last
    assert len(known) == len(last)


def test_nobody_else_may_read_the_file(path):
    kept = LearntStore(path)
    publish(kept, profiles=(profile(),))
    kept.save()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def good(path):
    kept = LearntStore(path)
    ranks = (AgentRank("t", "app", "a", 0.5),)
    publish(kept, profiles=(profile(),), models=(model(),), ranks=ranks)
    kept.save()
    return path.read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"\0" * len(content),
        lambda content: content.replace(b'"version":1', b'"version":2'),
        lambda content: content.replace(b'"samples":4', b'"samples":"four"'),
        lambda content: content.replace(b'"agent":"a"', b'"agent":"\xff"'),
        lambda content: content.replace(b'"quantiles":[1.0,', b'"quantiles":['),
        lambda content: content.replace(b'"weights":[0.5,', b'"weights":['),
        lambda content: b"[" * 100_000,
        lambda content: b" " * (store._SLACK_BYTES + 9001) + content,
    ],
    ids=[
        "cut",
        "empty",
        "zeros",
        "newer",
        "wrong type",
        "no UTF-8",
        "other quantiles",
        "other features",
        "deep",
        "too large",
    ],
)
def test_a_file_that_is_no_use_is_put_aside_with_a_warning(path, caplog, damage):
    damaged = damage(good(path))
    path.write_bytes(damaged)
    kept = LearntStore(path, limit_bytes=9000)

    assert kept.read() is None
    assert path.with_name("learnt.json.unusable").read_bytes() == damaged
    (warning,) = caplog.messages
    assert str(path) in warning
    publish(kept, profiles=(profile("b"),))
    kept.save()
    assert [each.agent for each in kept.read().profiles] == ["b"]


def test_a_path_that_cannot_be_a_file_is_said_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "learnt.json"):
        with pytest.raises(SetupError, match="cannot save learnt profiles in"):
            LearntStore(path)


def test_a_file_that_cannot_be_written_is_said_once_and_written_when_it_can_be(tmp_path, caplog):
    path = tmp_path / "state" / "learnt.json"
    kept = LearntStore(path)
    publish(kept, profiles=(profile(),))
    path.parent.rmdir()
    kept.save()
    kept.save()
    assert len(caplog.messages) == 1
    path.parent.mkdir()
    kept.save()

    assert LearntStore(path).read().profiles == (profile(),)


async def test_it_is_saved_while_it_runs_and_at_the_end(path, monkeypatch):
    monkeypatch.setattr(store, "SAVE_S", 600)
    kept = LearntStore(path)
    with moved_clock() as clock:
        running = asyncio.create_task(kept.run())
        publish(kept, profiles=(profile("a"),))
        await turns()
        clock.move(600)
        async with asyncio.timeout(60):
            while not path.exists():
                await asyncio.sleep(0.01)
        publish(kept, profiles=(profile("b"),))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    assert [each.agent for each in LearntStore(path).read().profiles] == ["a", "b"]
