"""How quick an instance is, as its calls say: ours; the paper has a constant from profiling."""

_TOKEN_US = 25_000.0  # until anything is known: 8 billion parameters on an older GPU
_PROMPT_TOKEN_US = 200.0
_CLEARLY = 1.3
_FORGETTING = 0.98  # what was seen counts so much less with each new observation
# One observation says so many times what was expected, or so long, at most: much else than its
# instance can hold a call up.
_SLOWEST, _SLOWEST_US = 10.0, 1_000.0


class FittedLine:
    """A straight line through what was seen, newest most: least squares with forgetting."""

    def __init__(self, weight: float, x: float, y: float, xx: float, xy: float) -> None:
        self.weight = weight
        self.x = x  # means
        self.y = y
        self.xx = xx  # variance of x
        self.xy = xy  # covariance

    def see(self, x: float, y: float) -> None:
        kept = self.weight * _FORGETTING
        self.weight = kept + 1
        dx, dy = x - self.x, y - self.y
        share = 1 / self.weight
        self.x += share * dx
        self.y += share * dy
        self.xx = (1 - share) * (self.xx + share * dx * dx)
        self.xy = (1 - share) * (self.xy + share * dx * dy)

    def numbers(self) -> tuple[float, float, float]:
        """The line at 0, its slope, and the least that `at` tells. No slope is negative, nor is
        `at`: noise must not make work cheap."""
        xx, xy, y = self.xx, self.xy, self.y
        slope = xy / xx if xx > 0 and xy > 0 else 0.0
        return y - slope * self.x, slope, 0.1 * y if y > 0 else 0.0

    def at(self, x: float) -> float:
        # By `numbers`, without calls: several times for each request.
        xx, xy, y = self.xx, self.xy, self.y
        slope = xy / xx if xx > 0 and xy > 0 else 0.0
        least = 0.1 * y if y > 0 else 0.0
        found = y - slope * self.x + slope * x
        return found if found > least else least


class StepPace:
    """How quick instances of one kind are: time per token of an answer as a line in the number of
    calls that run beside each other, and time to the first token as one in the prompt's tokens that
    were computed. What is learnt on one instance is known of all of its kind, so that noise does
    not tell them apart."""

    def __init__(self, token_us: float | None = None) -> None:
        """`token_us`: from a profile, until calls say more."""
        # One observation each to begin with, with a spread, so that the first two do not decide.
        self.token = FittedLine(1.0, 8.0, token_us or _TOKEN_US, 64.0, 0.0)
        self.prompt = FittedLine(
            1.0, 500.0, 500 * _PROMPT_TOKEN_US, 250_000.0, 250e3 * _PROMPT_TOKEN_US
        )


class Speed:
    """One instance: the pace of its kind, and how many times as long it takes."""

    def __init__(self, pace: StepPace) -> None:
        self.pace = pace
        self._times = 1.0

    @property
    def times(self) -> float:
        """1 unless it is clearly off: calls differ, and so do instances, by chance."""
        return self._times if not 1 / _CLEARLY < self._times < _CLEARLY else 1.0

    def token_us(self, running: int) -> float:
        return max(1.0, self.times * self.pace.token.at(running))

    def token_slope_us(self, running: int) -> float:
        """How much longer a token takes for each call more."""
        line = self.pace.token
        return self.times * max(0.0, line.at(running + 1) - line.at(running))

    def prefill_us(self, tokens: int) -> float:
        """Until the first token, where so many of the prompt's are not cached."""
        return self.times * self.pace.prompt.at(tokens)

    def compute_us(self, tokens: int) -> float:
        """What so many tokens of a prompt add to that."""
        line = self.pace.prompt
        return self.times * max(0.0, line.at(tokens) - line.at(0))

    def computing_us(self, prefill_us: float, running: int) -> float:
        """The part of `prefill_us` in which a prompt is computed. Where prompts are all of one
        length, what a token of them adds is not known; but a first token takes a step of the
        engine, with so many calls beside each other, and the rest of its time at most is that."""
        pace = self.pace
        return max(0.0, prefill_us - self.times * max(pace.prompt.at(0), pace.token.at(running)))

    def token_took(self, token_us: float, running: int) -> None:
        """A token of each answer, with so many calls beside each other."""
        if token_us <= 0:
            return
        expected_us = self.pace.token.at(running)
        token_us = _bounded(token_us, expected_us)
        self.pace.token.see(running, token_us)
        if expected_us > 0:
            self._times += (1 - _FORGETTING) * (token_us / expected_us - self._times)

    def prompt_took(self, tokens: int, took_us: int) -> None:
        self.pace.prompt.see(tokens, _bounded(took_us, self.pace.prompt.at(tokens)))


def _bounded(took_us: float, expected_us: float) -> float:
    return min(took_us, max(_SLOWEST * expected_us, _SLOWEST_US))
