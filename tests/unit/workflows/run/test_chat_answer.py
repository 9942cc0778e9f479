import pytest

from kairos.core import UpstreamFailed
from kairos.workflows.run.chat_answer import ChatAnswer, read_chat


def response(**fields):
    return {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]} | fields


def test_text_and_tokens_are_read():
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 5},
    }
    assert read_chat(response(usage=usage)) == ChatAnswer("Hi", None, "stop", 7, 2, 5)


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens_details": None}])
def test_an_engine_need_not_tell_its_tokens(usage):
    assert read_chat(response(usage=usage)) == ChatAnswer("Hi", None, "stop", 0, 0, 0)


def test_an_answer_that_reached_its_length_is_cut():
    choices = [{"message": {"content": None}, "finish_reason": "length"}]

    read = read_chat({"choices": choices})
    assert (read.text, read.finish_reason) == ("", "length")
    assert "length" in read.cut


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [{"message": "Hi"}]}])
def test_what_is_no_chat_completion_is_refused(answer):
    with pytest.raises(UpstreamFailed, match="not a chat completion"):
        read_chat(answer)
