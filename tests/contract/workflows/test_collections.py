"""Collections that stay are the same in files and in a database."""

import asyncio

import numpy as np
import psycopg
import pytest

from kairos.core import InvalidRequest, SetupError, Unavailable
from kairos.workflows.retrieve import collections as bounds
from kairos.workflows.retrieve import lance_collections
from kairos.workflows.retrieve.collections import BoundedCollections, collection_key, passage_id
from kairos.workflows.retrieve.lance_collections import LanceCollections
from kairos.workflows.retrieve.postgres_collections import PostgresCollections
from kairos.workflows.retrieve.vectors import best_of, search, text_of
from tests.support.postgres import postgres

LIMIT_S = 60
AXES = np.eye(3, dtype=np.float32)


@pytest.fixture(scope="module")
def database():
    with postgres() as url:
        yield url


@pytest.fixture(params=["lance", "postgres"])
async def opening(request, tmp_path):
    """Opens the same collections, as often as is asked."""
    opened = []
    if request.param == "postgres":
        url = request.getfixturevalue("database")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("drop table if exists kairos_passages, kairos_collections")

    async def open_it():
        if request.param == "lance":
            opened.append(await LanceCollections.open(tmp_path / "collections"))
        else:
            opened.append(await PostgresCollections.open(url))
        return opened[-1]

    async with asyncio.timeout(LIMIT_S):
        yield open_it
        for each in opened:
            await each.close()


async def test_what_was_put_there_is_found_by_the_cosine(opening):
    collections = await opening()
    await collections.put("docs", ["x", "y", "z"], 3 * AXES)
    found = await collections.nearest("docs", np.float32([[1, 1, 0]]), 2)

    assert best_of(found, 2) == [{"text": "x", "score": 0.707107}, {"text": "y", "score": 0.707107}]


async def test_it_is_there_for_who_opens_it_later(opening):
    first = await opening()
    await first.put("docs", ["x"], AXES[:1])
    second = await opening()
    await first.put("docs", ["y"], AXES[1:2])

    assert len(await second.nearest("docs", AXES[:1], 5)) == 2


async def test_the_same_passage_is_there_once_whoever_puts_it_there_and_when(opening):
    first, second = await opening(), await opening()
    await first.put("docs", ["x", "y", "x"], AXES)
    await asyncio.gather(
        *(each.put("docs", ["x", "y"], AXES[:2]) for each in (first, second) for _ in range(4))
    )
    found = await first.nearest("docs", AXES[:1], 5)

    assert sorted(found) == [("x", pytest.approx(1)), ("y", pytest.approx(0))]


async def test_a_passage_has_the_vector_that_it_was_put_there_with_last(opening):
    collections = await opening()
    await collections.put("docs", ["x"], AXES[:1])
    await collections.put("docs", ["x", "x"], AXES[1:])

    assert await collections.nearest("docs", AXES[2:], 5) == [("x", pytest.approx(1))]


async def test_collections_are_apart(opening):
    collections = await opening()
    await collections.put("docs", ["x"], AXES[:1])
    await collections.put(collection_key("a-tenant", "docs"), ["y"], AXES[:1])

    assert await collections.nearest("docs", AXES[:1], 5) == [("x", pytest.approx(1))]


async def test_one_that_nothing_was_put_into_is_not_there(opening):
    collections = await opening()
    with pytest.raises(InvalidRequest, match="there is no collection 'docs'"):
        await collections.nearest("docs", AXES[:1], 5)


async def test_what_is_there_is_counted(opening):
    collections = await opening()
    assert (await collections.keys(), await collections.count("docs")) == (set(), 0)
    await collections.put("docs", ["x", "y"], AXES[:2])
    await collections.put("x.docs", ["x"], AXES[:1])

    assert await collections.keys() == {"docs", "x.docs"}
    assert await collections.count("docs") == 2


async def test_a_tenant_has_so_many_collections_with_so_many_passages(opening, monkeypatch):
    monkeypatch.setattr(bounds, "MOST_COLLECTIONS", 2)
    monkeypatch.setattr(bounds, "MOST_PASSAGES", 2)
    collections = BoundedCollections(await opening())
    await collections.put("a", "first", ["x", "y"], AXES[:2])
    await collections.put("a", "second", ["x"], AXES[:1])
    with pytest.raises(InvalidRequest, match="2 collections"):
        await collections.put("a", "third", ["x"], AXES[:1])
    await collections.put("b", "third", ["x"], AXES[:1])
    with pytest.raises(InvalidRequest, match="'first' has 2 passages"):
        await BoundedCollections(await opening()).put("a", "first", ["z"], AXES[2:])
    with pytest.raises(InvalidRequest, match=r"no collection 'b\.first'"):
        await collections.nearest("b", "first", AXES[:1], 1)


async def test_vectors_of_another_model_are_refused(opening):
    collections = await opening()
    await collections.put("docs", ["x"], AXES[:1])
    for asked in (
        collections.put("docs", ["y"], np.float32([[1, 2]])),
        collections.nearest("docs", np.float32([[1, 2]]), 5),
    ):
        with pytest.raises(InvalidRequest, match=r"2 numbers, .* have 3: .* the same model"):
            await asked


async def test_what_is_found_is_what_exact_search_finds(opening):
    dice = np.random.default_rng(1)
    vectors = dice.normal(size=(300, 24)).astype(np.float32)
    texts = [f'passage {number}; it\'s "quoted" -- \\ %s é' for number in range(300)]
    collections = await opening()
    for begin in range(0, 300, 50):
        await collections.put("docs", texts[begin : begin + 50], vectors[begin : begin + 50])
    sought = dice.normal(size=(3, 24)).astype(np.float32)
    found = best_of(await collections.nearest("docs", sought, 7), 7)
    expected = search(
        [{"texts": texts, "vectors": list(map(text_of, vectors))}], list(map(text_of, sought)), 7
    )

    assert [each["text"] for each in found] == [each["text"] for each in expected]
    scores = [each["score"] for each in expected]
    assert [each["score"] for each in found] == pytest.approx(scores, abs=2e-6)


async def test_a_database_that_ends_its_connections_is_asked_by_new_ones(database):
    collections = await PostgresCollections.open(database)
    await collections.put("ended", ["x"], AXES[:1])
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
        )
    with pytest.raises(Unavailable, match="database"):
        await collections.nearest("ended", AXES[:1], 1)

    assert await collections.nearest("ended", AXES[:1], 1) == [("x", pytest.approx(1))]
    await collections.close()


async def test_a_database_that_is_not_there_is_told_before_anything_begins():
    with pytest.raises(SetupError, match=r"cannot be kept in postgresql://127\.0\.0\.1:9/x"):
        await PostgresCollections.open("postgresql://127.0.0.1:9/x")


async def test_a_directory_that_is_none_is_told_before_anything_begins(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="cannot be kept in"):
        await LanceCollections.open(tmp_path / "file" / "directory")


async def test_no_more_is_sought_at_once_than_a_hundred_vectors(tmp_path):
    collections = BoundedCollections(await LanceCollections.open(tmp_path))
    await collections.put("a", "docs", ["x"], AXES[:1])
    assert len(await collections.nearest("a", "docs", AXES[[0] * 100], 1)) == 100
    with pytest.raises(InvalidRequest, match="a search of 101 vectors: at most 100 are allowed"):
        await collections.nearest("a", "docs", AXES[[0] * 101], 1)
    await collections.close()


def test_tenants_have_collections_of_their_own():
    names = [("default", "a"), ("x", "a"), ("x", "b"), ("x.y", "a"), ("-/x", "a"), ("é", "a")]
    keys = {collection_key(*name) for name in names}

    assert len(keys) == len(names)
    assert all(set(key) <= set("abcdefxy0123456789.-") for key in keys)


def test_no_tenant_can_be_called_as_another_is_kept():
    kept = collection_key("-/x", "a").rpartition(".")[0]
    assert collection_key(kept, "a") != collection_key("-/x", "a")


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "../a", "a b", "a'; drop table x; --", "1"])
def test_what_is_no_name_of_a_collection_is_refused(name):
    with pytest.raises(InvalidRequest, match="letters, digits"):
        collection_key("default", name)


def test_ids_of_passages_are_of_their_texts():
    assert passage_id("a") == passage_id("a") != passage_id("b")


async def test_files_of_what_was_put_there_in_pieces_are_put_together(tmp_path, monkeypatch):
    monkeypatch.setattr(lance_collections, "_TIDY_AFTER", 4)
    collections = await LanceCollections.open(tmp_path)
    for number in range(5):
        await collections.put("docs", [str(number)], AXES[:1])
    found = await collections.nearest("docs", AXES[:1], 100)
    await collections.close()

    assert len(found) == 5
    import lancedb  # a second, for this test alone

    table = await (await lancedb.connect_async(tmp_path)).open_table("docs")
    assert (await table.stats())["fragment_stats"]["num_fragments"] == 2
