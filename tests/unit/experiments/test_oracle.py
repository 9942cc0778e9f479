"""What a placement is told that knows every length."""

from experiments.oracle import KnownLengths
from kairos.core import QUANTILES, Distribution
from tests.support.simulate import build


class Learnt:
    """Every call is like every other."""

    def kind(self, request):
        return None

    def completion_tokens(self, request):
        return Distribution(99.0, (99.0,) * QUANTILES)

    def latency_us(self, request):
        return Distribution(7e6, (7e6,) * QUANTILES)

    def call_us(self, request):
        return 7_000_000


def test_each_answer_has_its_own_length_for_certain():
    known = KnownLengths(Learnt(), {"w/0": 12, "w/1": 3_000})

    for request_id, tokens in (("w/0", 12), ("w/1", 3_000), ("w/0", 12)):
        found = known.completion_tokens(build.request(request_id))
        assert found == Distribution(tokens, (tokens,) * QUANTILES)


def test_what_is_known_of_one_call_is_known_of_those_of_the_same_length_alone():
    known = KnownLengths(Learnt(), {"w/0": 12, "w/1": 3_000, "v/0": 12})
    kinds = [known.kind(build.request(each, agent="a")) for each in ("w/0", "w/1", "v/0")]
    assert kinds[0] == kinds[2] != kinds[1]
