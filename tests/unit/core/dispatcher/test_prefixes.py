"""Which prompts are taken for cached where."""

from kairos.core.dispatcher.prefixes import PrefixIndex
from tests.support.simulate import build
from tests.support.simulate.model import PromptPiece, length, prefix_hashes


def prompt(*pieces, name="r", scale=1.0, **fields):
    """A request whose prompt consists of (name, tokens); `scale` tokens are expected for each."""
    made = tuple(PromptPiece(*piece) for piece in pieces)
    units = length(made)
    return build.request(
        name,
        prompt=max(1, round(units * scale)),
        prefix=prefix_hashes(made),
        prefix_units=units,
        **fields,
    )


def index(*instances, **sizes):
    made = PrefixIndex()
    for each in instances or [build.instance(name, kv=kv) for name, kv in sizes.items()]:
        made.add_instance(each)
    return made


def ran(index, request, instance_id="a", *, at=0, answer=0, cached=None):
    index.begin_use(request, instance_id, at)
    index.end_use(request, instance_id, answer, cached, at)


def test_a_prompt_of_one_token_or_without_marks_is_found_nowhere():
    found = index(a=100)
    for short in (build.request("r", prompt=1), prompt(("x", 63))):
        assert found.match(short) == {}
        ran(found, short, answer=5)
        assert not found.is_in_use(short)
        assert (found.in_use(short), found.shared_tokens("a")) == ({}, 0)


def test_marks_count_in_units_and_tokens_are_as_many_as_are_expected_of_them():
    found = index(a=10_000)
    ran(found, prompt(("system", 400), scale=1.5))
    assert found.match(prompt(("system", 400), scale=1.5)) == {"a": 576}  # 384 units
    assert found.match(prompt(("system", 400), scale=0.5)) == {"a": 199}  # no more than it has


def test_what_is_longest_unused_goes_first_and_of_a_prompt_its_end():
    found = index(a=640)
    ran(found, prompt(("old", 256)), at=1)
    ran(found, prompt(("new", 256)), at=2)
    assert found.match(prompt(("old", 256))) == {"a": 255}
    ran(found, prompt(("third", 256)), at=3)
    assert found.match(prompt(("old", 256))) == {"a": 128}
    assert found.match(prompt(("new", 256))) == {"a": 255}

    ran(found, prompt(("old", 128)), at=4)  # what is used again is not old any more
    ran(found, prompt(("fourth", 128)), at=5)
    assert found.match(prompt(("old", 256))) == {"a": 128}
    assert found.match(prompt(("new", 256))) == {"a": 128}


def test_what_calls_in_flight_use_stays():
    found = index(a=300)
    busy = prompt(("busy", 256), name="busy")
    found.begin_use(busy, "a", 1)
    for n in range(5):
        ran(found, prompt((f"p{n}", 256)), at=2 + n)
    assert found.match(busy) == {"a": 255}
    found.end_use(busy, "a", 0, None, 9)
    ran(found, prompt(("last", 256)), at=10)
    assert found.match(busy) == {}


def test_what_calls_in_flight_share_is_counted():
    found = index(a=10_000, b=10_000)
    one, two, three = (
        prompt(("system", 128), (who, 200), name=who) for who in ("one", "two", "three")
    )
    assert not found.is_in_use(two)
    found.begin_use(one, "a", 1)
    assert found.is_in_use(two)
    assert found.in_use(two) == {"a": 128}
    assert found.shared_tokens("a") == 0
    found.begin_use(two, "a", 2)
    found.begin_use(three, "a", 3)
    assert (found.shared_tokens("a"), found.shared_tokens("b")) == (256, 0)
    found.end_use(one, "a", 0, None, 4)
    assert found.shared_tokens("a") == 128
    found.end_use(three, "a", 0, None, 5)
    found.end_use(two, "a", 0, None, 6)
    assert found.shared_tokens("a") == 0
    assert not found.is_in_use(two)


def test_no_more_of_a_prompt_is_in_use_than_it_has():
    found = index(a=10_000)
    found.begin_use(prompt(("x", 640), scale=4.0, name="one"), "a", 1)
    assert found.in_use(prompt(("x", 640), scale=0.25)) == {"a": 160}


def test_a_reply_that_tells_fewer_cached_tokens_than_expected_corrects_what_is_known():
    found = index(a=10_000)
    old, mid, new = (prompt((who, 256)) for who in ("old", "mid", "new"))
    for at, each in enumerate((old, mid, new)):
        ran(found, each, at=at)
    again = prompt(("mid", 256), ("more", 256), name="again")
    assert found.begin_use(again, "a", 5) == 256
    found.end_use(again, "a", 0, 0, 6)
    assert found.match(old) == {}  # it was unused for longer than what was missed
    assert found.match(new) == {"a": 255}
    assert found.match(again) == {"a": 511}  # it is there now


def test_calls_that_fan_out_at_once_and_find_nothing_cached_yet_say_nothing_of_what_was():
    """Each is expected to find what the first of them is about to compute."""
    found = index(a=10_000)
    ran(found, prompt(("old", 256)), at=0)
    fan = [prompt(("system", 512), (f"n{n}", 64), name=f"n{n}") for n in range(4)]
    assert [found.begin_use(each, "a", 5) for each in fan] == [0, 512, 512, 512]
    for each in fan:
        found.end_use(each, "a", 9, 0, 6)
    assert found.match(prompt(("old", 256))) == {"a": 255}
    assert found.match(fan[0]) == {"a": 575}


def test_a_call_from_before_its_instance_joined_is_no_user_of_what_is_there_since():
    found = index(a=600)
    before = prompt(("x", 256), name="before")
    found.begin_use(before, "a", 1)
    found.remove_instance("a")
    found.add_instance(build.instance("a", kv=600))
    since, also = (prompt(("x", 256), name=name) for name in ("since", "also"))
    found.begin_use(since, "a", 2)
    found.begin_use(also, "a", 3)
    found.end_use(before, "a", 10, 0, 4)
    assert found.shared_tokens("a") == 256
    ran(found, prompt(("y", 512)), at=5)
    assert found.match(since) == {"a": 255}  # in use, so it stays
    found.end_use(since, "a", 0, None, 6)
    found.end_use(also, "a", 0, None, 7)
    assert found.shared_tokens("a") == 0
    assert found._caches["a"].begun == {}


def test_an_instance_without_a_prefix_cache_holds_nothing():
    off = build.instance("a", kv=1000, prefix_caching=False)
    found = index(off)
    ran(found, prompt(("x", 256)))
    assert found.match(prompt(("x", 256))) == {}
    found.add_instance(build.instance("a", kv=1000))
    ran(found, prompt(("x", 256)))
    assert found.match(prompt(("x", 256))) == {"a": 255}
    found.add_instance(off)
    assert found.match(prompt(("x", 256))) == {}
    assert found.runs.first == {}


def test_an_instance_that_is_said_to_be_smaller_holds_less():
    found = index(a=10_000)
    for n in range(4):
        ran(found, prompt((f"p{n}", 256)), at=n)
    found.add_instance(build.instance("a", kv=512))
    assert [found.match(prompt((f"p{n}", 256))).get("a", 0) for n in range(4)] == [0, 0, 255, 255]


def test_of_an_instance_that_does_not_tell_its_size_something_is_assumed():
    found = index(build.instance("a"))
    for n in range(500):
        ran(found, prompt((f"p{n}", 1024)), at=n)
    assert found._caches["a"].tokens <= 100_000
    assert found.match(prompt(("p499", 1024))) == {"a": 1023}


def test_of_one_instance_the_same_is_said_as_of_all():
    found = index(a=10_000, b=10_000)
    ran(found, prompt(("system", 200), ("first", 300)))
    for asked in (
        prompt(("system", 200), ("second", 300)),
        prompt(("system", 200), ("first", 300), ("next", 900)),
        prompt(("system", 128)),
        prompt(("other", 200)),
    ):
        said = found.match(asked)
        assert [found.cached_tokens(asked, each) for each in "ab"] == [said.get("a", 0), 0]


def test_it_says_of_a_beginning_and_an_instance_that_calls_have_it_or_have_it_no_more():
    found = index(a=10_000, b=10_000)
    one, other = prompt(("system", 256), name="one"), prompt(("other", 256), name="other")
    ran(found, one)
    ran(found, other, "b")
    seen, before = [found.runs.beginning(one.prefix)], found.runs.beginning(other.prefix)
    for change in (
        lambda: found.begin_use(one, "a", 1),
        lambda: found.end_use(one, "a", 0, None, 2),
        lambda: found.remove_instance("a"),
    ):
        changes = found.runs.changes
        change()
        assert set(found.runs.changed_since(changes)) <= {"a"}
        assert "a" in found.runs.changed_since(changes) or found.left
        seen.append(found.runs.beginning(one.prefix))
    assert len(set(seen)) == 4
    assert found.runs.beginning(other.prefix) == before
