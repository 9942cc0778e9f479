"""Of which code a row is."""

import subprocess

from experiments.report import commit


def test_a_row_s_commit_tells_of_changes_but_not_of_rows_that_were_written(tmp_path):
    def git(*words):
        options = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *options, *words], cwd=tmp_path, check=True, capture_output=True)

    here = tmp_path / "experiments"
    (here / "results").mkdir(parents=True)
    files = [here / "REPORT.md", here / "results" / "rows.jsonl", tmp_path / "code.py"]
    assert commit(here) == "unknown"
    git("init")
    for each in files:
        each.write_text("before")
    git("add", ".")
    git("commit", "-m", "first")

    clean = commit(here)
    assert len(clean) == 12
    for each in files[:2]:
        each.write_text("after")
    assert commit(here) == clean
    files[2].write_text("after")
    assert commit(here) == f"{clean}+"
