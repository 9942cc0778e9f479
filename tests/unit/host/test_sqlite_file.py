"""Databases that several processes begin at the same time."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest

from kairos.host import open_database

SCHEMA = "CREATE TABLE things (name TEXT);\n"
AT_ONCE, DATABASES = 8, 40


def test_processes_that_begin_a_database_at_the_same_time_all_have_it(tmp_path):
    def use(path):
        connection = open_database(path, SCHEMA, 1, "start anew")
        connection.execute("INSERT INTO things VALUES ('a')")
        connection.close()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for number in range(DATABASES):
            path = tmp_path / f"{number}.sqlite"
            for done in [pool.submit(use, path) for _ in range(AT_ONCE)]:
                done.result()
            with sqlite3.connect(path) as found:
                assert found.execute("SELECT count(*) FROM things").fetchone() == (AT_ONCE,)
            found.close()


def test_what_is_no_database_is_refused_at_once(tmp_path):
    path = tmp_path / "text"
    path.write_text("this is no database, but long enough to be looked at as if it were one" * 20)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        open_database(path, SCHEMA, 1, "start anew")
