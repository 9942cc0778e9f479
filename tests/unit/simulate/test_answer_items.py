"""Items of a list in a simulated answer, before the answer is whole."""

import json

from kairos.simulate.clock import VirtualClock
from kairos.simulate.flow_client import ITEMS_LOOK_US, AnswerItems, finished_items


def test_an_item_is_there_with_its_last_token():
    text = '{"a":["x","x"],"q":["one","x",{"b":[1]}]}'
    found = finished_items(text, ("q",), 10)

    assert [item for _, item in found] == ["one", "x", {"b": [1]}]
    for tokens, item in found:
        begun, before = text[: 4 * tokens], text[: 4 * (tokens - 1)]
        written = json.dumps(item, separators=(",", ":"))
        assert written in begun[19:]
        assert written not in before[19:]


def test_no_more_items_than_are_wanted_and_none_of_an_empty_list():
    assert [item for _, item in finished_items("[1,2,3]", (), 2)] == [1, 2]
    assert finished_items('{"q":[]}', ("q",), 2) == []


def test_items_are_told_as_tokens_come_and_no_more_once_the_call_has_ended():
    clock, told, open_calls = VirtualClock(), [], {"r"}

    def generated():
        return {"r": clock.now() // ITEMS_LOOK_US}  # a token a turn

    watch = AnswerItems(
        clock, generated, open_calls.__contains__, lambda *fact: told.append((clock.now(), fact))
    )
    watch.follow("r", 7, [(2, "a"), (4, "b"), (9, "c")])
    clock.call_at(6 * ITEMS_LOOK_US, open_calls.clear)
    clock.run()

    assert [(at // ITEMS_LOOK_US, fact) for at, fact in told] == [
        (2, (7, 0, ["a"])),
        (4, (7, 1, ["b"])),
    ]
    assert clock.now() <= 7 * ITEMS_LOOK_US
