"""What prompts share: by the recorded cached prefix, and by an agent's own."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from kairos.workload import FileCall
from kairos.workload.prompt import Prompt, PromptPiece, cut, length, prompts, shared_name

SHARED = shared_name("a", "writer")


def call(index: int, prompt_tokens: int, **more) -> FileCall:
    given = {"agent": "writer", "workflow_id": "w"} | more
    return FileCall(
        app="a",
        upstream="user",
        call_index=index,
        prompt_tokens=prompt_tokens,
        completion_tokens=5,
        **given,
    )


def shared_tokens(left: Prompt, right: Prompt) -> int:
    """The longest common prefix, token by token."""
    texts = [
        [(piece.name, number) for piece in prompt for number in range(piece.tokens)]
        for prompt in (left, right)
    ]
    same = 0
    for mine, theirs in zip(*texts, strict=False):
        if mine != theirs:
            break
        same += 1
    return same


def test_a_prompt_begins_with_what_was_cached_of_the_one_before():
    first, second, third = prompts(
        [
            call(0, 100),
            call(1, 150, cached_prefix_tokens=96),
            call(2, 160, cached_prefix_tokens=120),
        ]
    )

    assert first == (PromptPiece("w#0", 100),)
    assert second == (PromptPiece("w#0", 96), PromptPiece("w#1", 54))
    assert third == (PromptPiece("w#0", 96), PromptPiece("w#1", 24), PromptPiece("w#2", 40))


def test_the_answer_to_the_prompt_before_is_not_found_again():
    # 130 tokens were cached: the prompt before, its answer, and something more.
    _, second = prompts([call(0, 100), call(1, 150, cached_prefix_tokens=130)])

    assert second == (PromptPiece("w#0", 100), PromptPiece("w#1", 50))


def test_what_is_cached_is_of_the_same_agent_and_group():
    made = prompts(
        [
            call(0, 10, agent="reader"),
            call(1, 10, cached_prefix_tokens=8),
            call(2, 10, parallel_group="s", cached_prefix_tokens=8),
            call(3, 10, parallel_group="s", cached_prefix_tokens=8),
        ]
    )

    assert made[1] == (PromptPiece("w#1", 10),)
    assert made[2] == (PromptPiece("w#2", 10),)
    assert made[3] == (PromptPiece("w#2", 8), PromptPiece("w#3", 2))


def test_an_agents_shared_prefix_begins_its_prompts_in_every_workflow():
    (mine,) = prompts([call(0, 50, shared_prefix_tokens=30)])
    (theirs,) = prompts([call(0, 40, shared_prefix_tokens=30, workflow_id="v")])

    assert mine == (PromptPiece(SHARED, 30), PromptPiece("w#0", 20))
    assert shared_tokens(mine, theirs) == 30


def test_a_shared_prefix_that_was_cached_in_part_is_one_piece():
    _, second = prompts(
        [
            call(0, 50, shared_prefix_tokens=30),
            call(1, 60, shared_prefix_tokens=30, cached_prefix_tokens=16),
        ]
    )

    assert second == (PromptPiece(SHARED, 30), PromptPiece("w#1", 30))


def test_what_was_cached_of_an_own_text_is_not_replaced_by_a_shared_prefix():
    _, second = prompts(
        [call(0, 50), call(1, 60, shared_prefix_tokens=30, cached_prefix_tokens=16)]
    )

    assert second == (PromptPiece("w#0", 16), PromptPiece("w#1", 44))


def test_a_prompt_can_be_cached_or_shared_whole():
    made = prompts(
        [call(0, 30, shared_prefix_tokens=30), call(1, 20, cached_prefix_tokens=20), call(2, 5)]
    )

    assert made == (
        (PromptPiece(SHARED, 30),),
        (PromptPiece(SHARED, 20),),
        (PromptPiece("w#2", 5),),
    )


def test_names_of_apps_and_agents_do_not_run_into_each_other():
    names = {shared_name("a", "b/c"), shared_name("a/b", "c"), shared_name("a'/'b", "c"), "a#1"}

    assert len(names) == 4


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 40), st.integers(0, 20), st.booleans()),
        max_size=8,
    )
)
def test_two_prompts_share_what_the_rule_says(rows):
    calls = [
        call(
            index,
            tokens,
            cached_prefix_tokens=min(cached, tokens),
            shared_prefix_tokens=min(shared, tokens),
            agent="writer" if writes else "reader",
        )
        for index, (tokens, cached, shared, writes) in enumerate(rows)
    ]
    made = prompts(calls)

    assert [length(each) for each in made] == [each.prompt_tokens for each in calls]
    for each in made:
        assert all(piece.tokens >= 1 for piece in each)
        assert len({piece.name for piece in each}) == len(each)
    # A text token by token, the slow and obvious way.
    texts: list[list[tuple[str, int, int]]] = []
    for index, each in enumerate(calls):
        before = [i for i in range(index) if calls[i].agent == each.agent]
        text = texts[before[-1]][: each.cached_prefix_tokens] if before else []
        if all(token[0] == "shared" for token in text):
            for number in range(len(text), each.shared_prefix_tokens or 0):
                text = [*text, ("shared", each.agent == "writer", number)]
        texts.append(text + [("own", index, n) for n in range(len(text), each.prompt_tokens)])
    for left, right in combinations(range(len(calls)), 2):
        same = [mine == its for mine, its in zip(texts[left], texts[right], strict=False)]
        expected = same.index(False) if False in same else len(same)
        assert shared_tokens(made[left], made[right]) == expected


@given(st.lists(st.integers(1, 9), max_size=6), st.data())
def test_a_prompt_is_cut_to_the_token(sizes, data):
    prompt = tuple(PromptPiece(f"p{n}", tokens) for n, tokens in enumerate(sizes))
    off = data.draw(st.integers(0, length(prompt)))

    rest = cut(prompt, off)

    assert length(rest) == length(prompt) - off
    assert shared_tokens(rest, prompt) == length(rest)
