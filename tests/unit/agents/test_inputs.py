"""Inputs of the example applications: the built-in ones, and those of every data set."""

from collections import Counter

import pytest

from agents.inputs import SOURCES, Input, load
from kairos.core import SetupError
from kairos.simulate import data_sets, fetch_data_set

SOLUTIONS = """
def late_fee(days_late):
    return min(30, 2 * days_late)

def initials(name):
    return "".join(word[0].upper() for word in name.split())

def seats_left(seats, bookings):
    for booking in bookings:
        seats -= booking if booking <= seats else 0
    return seats

def clock_time(minutes):
    return f"{minutes // 60 % 24:02}:{minutes % 60:02}"

def retry_delays(first, limit, count):
    return [min(limit, first * 2**n) for n in range(count)]

def shared_minutes(a, b):
    return max(0, min(a[1], b[1]) - max(a[0], b[0]))

def busiest(visits):
    return min(set(visits), key=lambda name: (-visits.count(name), name))

def parse_size(text):
    unit = {"K": 1024, "M": 1024**2}.get(text[-1], 1)
    return int(text.rstrip("KM")) * unit

def merge_settings(defaults, changes):
    return {k: v for k, v in (defaults | changes).items() if v is not None}

def load_trucks(weights, capacity):
    trucks, left = 0, 0
    for weight in weights:
        if weight > left:
            trucks, left = trucks + 1, capacity
        left -= weight
    return trucks

def line_wait(arrivals, service):
    waits, free = [], 0
    for arrival in arrivals:
        start = max(arrival, free)
        waits.append(start - arrival)
        free = start + service
    return waits

def drop_repeats(lines):
    return [line for n, line in enumerate(lines) if n == 0 or line != lines[n - 1]]
"""


KINDS = {
    "gsm8k_test": "mathematics",
    "svamp_test": "mathematics",
    "mathqa_test": "mathematics",
    "mmlu_history": "humanities",
    "social_i_qa_test": "humanities",
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KAIROS_HOME", str(tmp_path))


def test_the_built_in_questions_are_half_mathematics_and_half_humanities():
    questions = load("qa")

    assert Counter(question.kind for question in questions) == {"mathematics": 12, "humanities": 12}
    assert all(question.answer and len(question.answer) < 20 for question in questions)


CODE_TASKS = [pytest.param(task, id=task.entry_point) for task in load("cg")]


@pytest.mark.parametrize("task", CODE_TASKS)
def test_a_built_in_code_task_can_be_solved(task: Input):
    names: dict[str, object] = {}
    exec(SOLUTIONS, names)
    exec(task.tests, names)


@pytest.mark.parametrize("task", CODE_TASKS)
@pytest.mark.parametrize("answer", [None, 0, "", [], "first"])
def test_a_built_in_code_task_is_not_solved_by_a_constant_or_by_its_argument(task: Input, answer):
    def wrong(*arguments: object) -> object:
        return arguments[0] if answer == "first" else answer

    with pytest.raises(AssertionError):
        exec(task.tests, {task.entry_point: wrong})


@pytest.mark.parametrize("name", SOURCES)
def test_a_data_set_is_loaded_whole(data, name):
    fetch_data_set(name, data)
    app = SOURCES[name].app

    loaded = load(app, name)

    assert len(loaded) == len({each.id for each in loaded}) == data_sets()[name].rows
    assert {(each.app, each.kind) for each in loaded} == {(app, KINDS.get(name))}
    assert all(each.text.strip() and "\ufffd" not in each.text for each in loaded)
    assert all((each.tests is not None) == (app == "cg") for each in loaded)


@pytest.mark.parametrize("name", ["humaneval-python", "mbpp"])
def test_code_tasks_name_the_function_that_their_tests_call(data, name):
    fetch_data_set(name, data)

    for task in load("cg", name):
        compile(task.tests, task.id, "exec")
        assert f"{task.entry_point}(" in task.text.replace(" (", "("), task.id
        assert f"{task.entry_point})" in task.tests or f"{task.entry_point}(" in task.tests, task.id


def test_a_data_set_that_was_not_fetched_says_how_to():
    with pytest.raises(SetupError, match="run: kairos traces fetch mbpp"):
        load("cg", "mbpp")


def test_an_unknown_application_is_answered_with_the_known_ones():
    with pytest.raises(SetupError, match="'xx'; choose one of: qa, rg, cg"):
        load("xx")
