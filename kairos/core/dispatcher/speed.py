"""Speed of an instance, measured from its calls; the paper uses a profiled constant."""

_TOKEN_US = 25_000.0  # initial assumption: 8 billion parameters on an older GPU
_PROMPT_TOKEN_US = 200.0
_CLEARLY = 1.3
_FORGETTING = 0.98  # factor on the weight of older observations with each new one
# An observation is capped to this multiple of the expected time, or to this time if that is more:
# a call may be delayed by other causes than its instance.
_SLOWEST, _SLOWEST_US = 10.0, 1_000.0


class FittedLine:
    """Line fitted to observations: least squares with exponential forgetting."""

    def __init__(self, weight: float, x: float, y: float, xx: float, xy: float) -> None:
        self.weight = weight
        self.x = x  # means
        self.y = y
        self.xx = xx  # variance of x
        self.xy = xy  # covariance

    def add_point(self, x: float, y: float) -> None:
        kept = self.weight * _FORGETTING
        self.weight = kept + 1
        dx, dy = x - self.x, y - self.y
        share = 1 / self.weight
        self.x += share * dx
        self.y += share * dy
        self.xx = (1 - share) * (self.xx + share * dx * dx)
        self.xy = (1 - share) * (self.xy + share * dx * dy)

    def numbers(self) -> tuple[float, float, float]:
        """Return the value at 0, the slope, and the lower bound of `at`.

        Neither slope nor `at` is ever negative: noise must not make work cheap.
        """
        xx, xy, y = self.xx, self.xy, self.y
        slope = xy / xx if xx > 0 and xy > 0 else 0.0
        return y - slope * self.x, slope, 0.1 * y if y > 0 else 0.0

    def at(self, x: float) -> float:
        # Same as `numbers`, inlined: used several times for each request.
        xx, xy, y = self.xx, self.xy, self.y
        slope = xy / xx if xx > 0 and xy > 0 else 0.0
        least = 0.1 * y if y > 0 else 0.0
        found = y - slope * self.x + slope * x
        return found if found > least else least


class StepPace:
    """Speed of one kind of instance.

    Time per answer token is a line in the number of concurrent calls; time to the first token is a
    line in the computed prompt tokens. What is learnt on one instance applies to its whole kind, so
    that noise does not separate equal instances.
    """

    def __init__(self, token_us: float | None = None) -> None:
        """Start with assumptions, and the time per token of a profile, if there is one."""
        # One initial observation each, with a variance, so that the first two do not decide.
        self.token = FittedLine(1.0, 8.0, token_us or _TOKEN_US, 64.0, 0.0)
        self.prompt = FittedLine(
            1.0, 500.0, 500 * _PROMPT_TOKEN_US, 250_000.0, 250e3 * _PROMPT_TOKEN_US
        )


class Speed:
    """Speed of one instance: the pace of its kind, and its own slowness as a factor."""

    def __init__(self, pace: StepPace) -> None:
        self.pace = pace
        self._times = 1.0

    @property
    def times(self) -> float:
        """Return the factor, or 1 unless it clearly differs: calls and instances vary by chance."""
        return self._times if not 1 / _CLEARLY < self._times < _CLEARLY else 1.0

    def token_us(self, running: int) -> float:
        return max(1.0, self.times * self.pace.token.at(running))

    def token_slope_us(self, running: int) -> float:
        """Return by how much one more call lengthens the time per token."""
        line = self.pace.token
        return self.times * max(0.0, line.at(running + 1) - line.at(running))

    def prefill_us(self, tokens: int) -> float:
        """Return the time to the first token with this many uncached prompt tokens."""
        return self.times * self.pace.prompt.at(tokens)

    def compute_us(self, tokens: int) -> float:
        """Return what this many prompt tokens add to the time to the first token."""
        line = self.pace.prompt
        return self.times * max(0.0, line.at(tokens) - line.at(0))

    def computing_us(self, prefill_us: float, running: int) -> float:
        """Return the part of `prefill_us` in which the prompt is computed.

        If all prompts have the same length, the time per prompt token is unknown; but a first token
        takes a step of the engine at this number of concurrent calls, and at most the rest is
        computing.
        """
        pace = self.pace
        return max(0.0, prefill_us - self.times * max(pace.prompt.at(0), pace.token.at(running)))

    def token_took(self, token_us: float, running: int) -> None:
        """Record an observed time per answer token with this many concurrent calls."""
        if token_us <= 0:
            return
        expected_us = self.pace.token.at(running)
        token_us = _bounded(token_us, expected_us)
        self.pace.token.add_point(running, token_us)
        if expected_us > 0:
            self._times += (1 - _FORGETTING) * (token_us / expected_us - self._times)

    def prompt_took(self, tokens: int, took_us: int) -> None:
        self.pace.prompt.add_point(tokens, _bounded(took_us, self.pace.prompt.at(tokens)))


def _bounded(took_us: float, expected_us: float) -> float:
    return min(took_us, max(_SLOWEST * expected_us, _SLOWEST_US))
