"""Scenario files: what they may say, and the submissions that come of them."""

from pathlib import Path

import pytest

from kairos.core import SECOND, InvalidFile
from kairos.simulate import draw_arrivals
from kairos.simulate.workload.scenario import read, submissions
from kairos.simulate.workload.workflow_file import write_workflows
from tests.support.simulate.worlds import recorded_call

ROOT = Path(__file__).resolve().parents[4]
EXAMPLES = sorted((ROOT / "traces" / "scenarios").glob("*.toml"))
TEXT = """
workflows = 60
seed = 3

[arrivals]
process = "poisson"
rate_per_s = 2

[[apps]]
app = "qa"

[[apps]]
app = "recorded.jsonl"
weight = 2

[[instances]]
profile = "mine.toml"
count = 2
kv_tokens = 20_000

[[instances]]
profile = "a40-llama3-8b"

[[events]]
at_s = 9
what = "recover"
instance = 0

[[events]]
at_s = 5
what = "fail"
instance = 0
"""


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    calls = [recorded_call(f"w{n}", upstream="user") for n in range(10)]
    write_workflows(tmp_path / "recorded.jsonl", calls)
    return tmp_path


def written(directory: Path, text: str = TEXT) -> Path:
    (directory / "s.toml").write_text(text)
    return directory / "s.toml"


def test_workflows_of_two_files_that_are_called_alike_are_kept_apart(recorded):
    (recorded / "again.jsonl").write_bytes((recorded / "recorded.jsonl").read_bytes())
    scenario = read(written(recorded, TEXT.replace('"qa"', '"again.jsonl"')))

    assert len({each.workflow.id for each in submissions(scenario)}) == 60


def test_workflows_may_come_for_a_time_instead_of_in_a_number(recorded):
    scenario = read(written(recorded, TEXT.replace("workflows = 60", "duration_s = 30")))

    instants = [each.at_us for each in submissions(scenario)]

    assert instants == draw_arrivals("poisson", len(instants), 2.0, 3)
    assert instants[-1] < 30 * SECOND <= draw_arrivals("poisson", len(instants) + 1, 2.0, 3)[-1]


def test_contexts_are_made_to_fit(recorded):
    scenario = read(written(recorded, "max_context_tokens = 100\n" + TEXT))

    planned = [each.workflow.calls[0] for each in submissions(scenario)]

    assert {call.prompt_tokens for call in planned if call.app == "chat"} == {91}


def test_arrivals_may_be_those_of_a_trace(recorded):
    rows = [f"2023-11-16 18:00:{second:02}.0,10,5" for second in range(60)]
    (recorded / "t.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    scenario = read(written(recorded, TEXT.replace('process = "poisson"', 'trace = "t.csv"')))

    assert [each.at_us for each in submissions(scenario)] == [n * SECOND // 2 for n in range(60)]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("seed = 3", "sead = 3", "unknown field `sead`; known are: arrivals, apps, instances, ev"),
        ("rate_per_s = 2", "rate = 2", r"`rate` - at `\$.arrivals`; known are: rate_per_s, proc"),
        ("weight = 2", "wait = 2", r"`wait` - at `\$.apps\[1\]`; known are: app, weight"),
        ("kv_tokens", "kv", r"`kv` - at `\$.instances.*; known are: profile, count, kv_tokens, ma"),
        ("rate_per_s = 2", "", "missing required field `rate_per_s`"),
        ("rate_per_s = 2", "rate_per_s = 0", "> 0"),
        ("rate_per_s = 2", "rate_per_s = 1e-7", "rate must be above 0 arrivals .* it is 1e-07"),
        ("rate_per_s = 2", "rate_per_s = inf", r"<= 1000000000.0 - at `\$.arrivals.rate_per_s`"),
        ("weight = 2", "weight = inf", r"<= 1000000000.0 - at `\$.apps"),
        ('what = "fail"', 'what = "unknown field"', "Invalid enum value 'unknown field'"),
        ("seed = 3", '"x - at `$.y" = 3', "unknown field `x - at `.*y`$"),
        ("seed = 3", f"seed = {'9' * 5000}", "not TOML: .*digits"),
        ('"poisson"', '"gamma"', "write gamma:CV with a CV of 0.01 to 100: gamma:2.5"),
        ("workflows = 60", "", "give either workflows, their number, or duration_s"),
        ("workflows = 60", "workflows = 6\nduration_s = 5", "give either workflows, their number"),
        ("[arrivals]", "[x]\n[arrivals]", "unknown field `x`; known are: arrivals, apps"),
        ('app = "qa"', 'app = "chat"', "'chat' is none of qa, rg, cg, nor a .toml, .jsonl"),
        ('app = "qa"', 'app = "recorded.jsonl"', "'recorded.jsonl' is listed twice"),
        ("count = 2", "count = 1000", "1001 instances are more than 1000"),
        ('what = "fail"', 'what = "explode"', "explode"),
        ("instance = 0", "instance = 3", "there are instances 0 to 2"),
        ("at_s = 5", "at_s = 10", "recover of instance 0 at 9 s: it is present then; what can hap"),
        ('what = "fail"', 'what = "slow"', "factor is needed by slow, and by nothing else"),
        ("at_s = 5", "at_s = 5\nfactor = 2.0", "factor is needed by slow"),
    ],
)
def test_a_scenario_that_is_wrong_is_refused_with_what_would_be_right(tmp_path, old, new, problem):
    assert old in TEXT

    with pytest.raises(InvalidFile, match=rf"s\.toml: .*{problem}"):
        read(written(tmp_path, TEXT.replace(old, new)))


def test_a_trace_needs_a_number(tmp_path):
    text = TEXT.replace('process = "poisson"', 'trace = "t.csv"')

    with pytest.raises(InvalidFile, match="arrivals from a trace need workflows"):
        read(written(tmp_path, text.replace("workflows = 60", "duration_s = 60")))


def test_an_instance_that_joins_was_not_there_and_one_that_left_may_join_again(tmp_path):
    events = [(1, "join"), (2, "leave"), (3, "join"), (4, "fail"), (5, "leave"), (6, "join")]
    text = TEXT.split("[[events]]", maxsplit=1)[0] + "".join(
        f'[[events]]\nat_s = {at}\nwhat = "{what}"\ninstance = 1\n' for at, what in events
    )

    assert [each.what for each in read(written(tmp_path, text)).events] == [w for _, w in events]
    with pytest.raises(InvalidFile, match="join of instance 1 at 6 s: it is down then"):
        read(written(tmp_path, text.replace("at_s = 5", "at_s = 7")))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_can_be_run(path):
    planned = submissions(read(path))

    assert len(planned) >= 1000
    assert {each.workflow.app for each in planned} <= {"qa", "rg", "cg"}


def test_there_are_examples():
    assert [path.stem for path in EXAMPLES] == [
        "bursts",
        "colocated-high",
        "colocated-low",
        "colocated-medium",
        "failure",
    ]
