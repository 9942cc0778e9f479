"""What prompts share: by the recorded cached prefix, and by an agent's own."""

from hypothesis import given
from hypothesis import strategies as st

from kairos.simulate.workload.prompt import Prompt, PromptPiece, cut, length


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


@given(st.lists(st.integers(1, 9), max_size=6), st.data())
def test_a_prompt_is_cut_to_the_token(sizes, data):
    prompt = tuple(PromptPiece(f"p{n}", tokens) for n, tokens in enumerate(sizes))
    off = data.draw(st.integers(0, length(prompt)))

    rest = cut(prompt, off)

    assert length(rest) == length(prompt) - off
    assert shared_tokens(rest, prompt) == length(rest)
