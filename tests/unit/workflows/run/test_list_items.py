"""What is told of a list while its text comes."""

import json

import pytest

from kairos.workflows.run.chat_answer import list_listener


def heard(text, most=100, path=("q",), size=3):
    told = []
    hear = list_listener(path, most, lambda first, items: told.append((first, items)))
    for at in range(0, len(text), size):
        hear(text[at : at + size])
    return told


def test_each_item_is_told_once_with_its_position():
    items = [{"n": n, "t": "x" * n} for n in range(40)]
    told = heard(json.dumps({"before": [0], "q": items}), size=40)

    assert [item for _, some in told for item in some] == items
    assert [first for first, _ in told] == [
        sum(len(some) for _, some in told[:at]) for at in range(len(told))
    ]
    assert len(told) > 10


@pytest.mark.parametrize("size", [1, 1_000])
def test_no_more_items_than_so_many_are_told(size):
    told = heard('{"q": [1, 2, 3, 4]}', most=3, size=size)
    assert [item for _, some in told for item in some] == [1, 2, 3]


def test_of_what_is_no_json_nothing_more_is_told():
    assert heard('{"q": [1, 2, oh] [3, 4]}') == [(0, [1]), (1, [2])]
    assert heard("no list") == []
