import pytest

from kairos.core import SetupError
from kairos.host import connect_sqlite
from kairos.workflows.run import result_cache
from kairos.workflows.run.result_cache import ResultCache


@pytest.fixture
def opened(tmp_path):
    made = []

    def open_cache(scope="us", **options):
        made.append(ResultCache(tmp_path / "cache.sqlite", scope, **options))
        return made[-1]

    yield open_cache
    for each in made:
        each.close()


def kept(cache, names):
    return [name for name in names if cache.find(name) is not None]


def test_what_comes_while_the_disk_is_far_behind_is_not_kept(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(result_cache, "BACKLOG_BYTES", 1_500)
    cache, other = opened(), connect_sqlite(tmp_path / "cache.sqlite")
    other.execute("BEGIN IMMEDIATE")  # nobody else writes meanwhile
    for name in ("a", "b", "c", "d"):
        cache.store(name, "x" * 1_000)
    other.execute("COMMIT")
    other.close()
    cache.settle()
    cache.store("e", "x" * 1_000)
    cache.settle()

    assert kept(cache, "abcde") == ["a", "b", "e"]


def test_what_nobody_used_for_longest_goes(opened):
    cache = opened(limit_bytes=10 * 1128)
    names = [f"{n:02}" for n in range(10)]
    for name in names:
        cache.store(name, "x" * 998)
    cache.settle()
    assert kept(cache, ["00", "03"]) == ["00", "03"]
    for name in ("10", "11", "12"):
        cache.store(name, "x" * 998)
    cache.settle()

    assert cache.size_bytes() == 10 * 1128
    assert kept(cache, names) == ["00", "03", "05", "06", "07", "08", "09"]
    assert kept(cache, ["10", "11", "12"]) == ["10", "11", "12"]


def test_one_scope_takes_no_room_from_another(opened):
    ours, theirs = opened("us", limit_bytes=5000), opened("them", limit_bytes=5000)
    ours.store("a", "x" * 1000)
    ours.settle()
    for n in range(500):
        theirs.store(str(n), "x" * 1000)
    theirs.settle()

    assert ours.find("a") is not None
    assert ours.size_bytes() < 5000
    assert 2000 < theirs.size_bytes() <= 5000


def test_while_much_is_stored_it_stays_near_its_bound(opened):
    cache = opened(limit_bytes=50_000)
    for n in range(2000):
        cache.store(str(n), "x" * 100)
    cache._commit.settle()

    assert cache.size_bytes() < 50_000 + 64 * 300


def test_a_result_that_fills_the_cache_alone_is_not_kept(opened):
    cache = opened(limit_bytes=5000)
    cache.store("small", "x")
    cache.store("large", "x" * 5000)
    cache.settle()

    assert cache.find("large") is None
    assert cache.find("small") is not None


def test_a_smaller_bound_holds_from_when_it_is_given(opened):
    cache = opened()
    for n in range(100):
        cache.store(str(n), "x" * 1000)
    cache.settle()
    smaller = opened(limit_bytes=10_000)
    smaller.settle()

    assert smaller.size_bytes() <= 10_000


def test_a_disk_without_room_costs_the_cache_what_came_and_nothing_else(opened):
    cache = opened()
    cache._commit._connection.execute("PRAGMA max_page_count = 20")
    for n in range(500):
        cache.store(str(n), "x" * 1000)
    cache.settle()

    assert cache.find("499") is None


def test_what_is_no_cache_is_refused(tmp_path):
    (tmp_path / "text").write_text("no database, but rather long, " * 100)
    with pytest.raises(SetupError, match="move it away, or run with --no-cache"):
        ResultCache(tmp_path / "text", "us")

    connect_sqlite(tmp_path / "other").execute("PRAGMA user_version = 99")
    with pytest.raises(SetupError, match="was written by another version of Kairos"):
        ResultCache(tmp_path / "other", "us")
