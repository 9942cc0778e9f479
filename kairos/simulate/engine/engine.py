"""The model: see `ModelledEngine`."""

from collections import deque

from kairos.core import EngineProfile, InvalidRequest, SetupError
from kairos.simulate.engine.blocks import contents_of
from kairos.simulate.engine.cost import PS_PER_US, Cost, Stretch
from kairos.simulate.engine.fetched_caches import Fetch
from kairos.simulate.engine.memory import HostTier
from kairos.simulate.engine.scheduler import Scheduler
from kairos.simulate.engine.sequence import CallProgress, EngineCall, EngineStats, Sequence
from kairos.simulate.workload.prompt import Prompt, length


class ModelledEngine:
    """Model of a vLLM instance in virtual time (µs). Pure: the caller supplies the time.

    Events must be added in order of time, each at its instant or later than the last `advance`.
    `next_at` says when to `advance` next: nothing becomes visible before then, and mostly something
    does then.

    It schedules as vLLM 0.32 (V1, without async scheduling): in each step running sequences get
    their next token, or as much of their prompt as the step's budget allows; then waiting ones are
    admitted, from the front, while sequences, budget and blocks allow and the whole prompt fits. If
    a block is missing, the newest or, by priority, the least important sequence is preempted and
    later recomputes everything that it does not find in the prefix cache, and nothing is admitted
    in that step. Full blocks can be found as soon as their step begins; unused blocks are evicted
    in the order in which they became unused, a sequence's last one first.

    A step is decided when the one before it has ended, or when a call reaches an idle engine; then
    it includes all that has arrived. A token becomes visible when its step ends. A call aborted
    during a step becomes invisible, and releases its blocks at the end of the step.
    """

    def __init__(self, profile: EngineProfile, tier: HostTier | None = None) -> None:
        """Create the engine.

        `tier` is a lower tier, to which full blocks are copied and from which they can be fetched.

        Raises:
            SetupError: A step would take no time by this profile, or the memory has no block.
        """
        self.profile = profile
        self.stats = EngineStats()
        self._capacity_tokens = profile.kv_tokens // profile.block_size * profile.block_size
        if not self._capacity_tokens:
            raise SetupError(
                f"{profile.name}: {profile.kv_tokens} KV tokens are less than one block"
            )
        self._scheduler = Scheduler(profile, self.stats, tier)
        self._cost = Cost.of(profile.step)
        self._call_ps = round(profile.call_us * PS_PER_US)
        self._calls: dict[str, Sequence] = {}  # that are neither finished nor aborted
        self._told = 0  # calls
        self._told_to = 0  # ps
        self._arriving: deque[tuple[int, Sequence]] = deque()  # ps
        # Steps in progress and those like it that follow. The first began at `_now`; None between
        # steps, when the last one ended at `_now`.
        self._stretch: Stretch | None = None
        self._now = 0  # ps
        self._ends_at = 0  # ps, the stretch
        self._aborted: list[Sequence] = []  # during the step in progress
        self._seen: list[CallProgress] = []

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Number of calls that do not run yet, including those on their way."""
        return len(self._scheduler.waiting) + len(self._arriving)

    @property
    def used_blocks(self) -> int:
        pool = self._scheduler.memory.pool
        used = pool.blocks - pool.free
        if self._stretch is not None and self._told_to > self._now:
            used += self._scheduler.blocks_to_allocate()
        return used

    def add(self, call: EngineCall, at: int) -> None:
        """Add a call. Raises InvalidRequest: The call can never be served (vLLM answers 400)."""
        prompt_tokens = length(call.prompt)
        self.check(call)
        self._run(at * PS_PER_US)
        assert call.id not in self._calls, f"{call.id} is in the engine already"
        size = self.profile.block_size
        contents = None
        if self.profile.prefix_caching:
            contents = contents_of(call.whole or call.prompt, size)
        self._told += 1
        sequence = Sequence(call, self._told, prompt_tokens, prompt_tokens // size, contents)
        self._calls[call.id] = sequence
        visible_at = at * PS_PER_US + self._call_ps
        self._arriving.append((visible_at, sequence))
        self._decide_anew_at(visible_at)

    def check(self, call: EngineCall) -> None:
        """Check that a call can be served. Raises InvalidRequest: It cannot: see `add`."""
        prompt_tokens = length(call.prompt)
        tokens = prompt_tokens + call.completion_tokens
        limit = min(self.profile.max_model_len, self._capacity_tokens)
        if min(call.completion_tokens, prompt_tokens, *[p.tokens for p in call.prompt]) < 1:
            raise InvalidRequest(
                f"call {call.id} has {prompt_tokens} prompt tokens in {len(call.prompt)} pieces "
                f"and {call.completion_tokens} completion tokens; each must be 1 or more"
            )
        if tokens > limit:
            raise InvalidRequest(
                f"call {call.id} has {prompt_tokens} prompt and {call.completion_tokens} "
                f"completion tokens, {tokens} together; the engine {self.profile.name} takes "
                f"{limit} (max_model_len {self.profile.max_model_len}, KV memory for "
                f"{self._capacity_tokens})"
            )

    def hold_prompt(self, prompt: Prompt) -> None:
        """Hold a prompt's full blocks from now on, computed in no time and never evicted.

        Some engines pin prefixes of prompts like this; vLLM does not.

        Raises:
            SetupError: They do not fit.
        """
        if not self.profile.prefix_caching:
            return
        self._scheduler.memory.hold_contents(contents_of(prompt, self.profile.block_size))

    def abort(self, call_id: str, at: int) -> None:
        """Abort a call; do nothing if it has ended or was never added."""
        self._run(at * PS_PER_US)
        sequence = self._calls.pop(call_id, None)
        if sequence is None:
            return
        self._go_on_from(at * PS_PER_US)
        arriving = [entry for entry in self._arriving if entry[1] is sequence]
        if arriving:
            self._arriving.remove(arriving[0])
        elif sequence.turn is None or self._stretch is None:
            self._scheduler.drop_sequence(sequence)
        else:
            self._aborted.append(sequence)

    def fetched(self, call_id: str, at: int, *, came: bool = True) -> None:
        """Report that the cache that a `loading` call waits for has arrived, or was lost.

        If it was lost, the call computes its prompt itself. To be called for aborted calls, too.
        """
        self._go_on_from(at * PS_PER_US)
        self._scheduler.fetched(call_id, came=came)

    def release_cache(self, call_id: str, at: int) -> None:
        """Release the blocks that a call kept for a reader; do nothing if it keeps none."""
        self._go_on_from(at * PS_PER_US)
        self._scheduler.caches.release(call_id)

    def generated(self, at: int) -> dict[str, int]:
        """Return the tokens of each unfinished answer that has begun, in order of arrival."""
        self._run(at * PS_PER_US)
        generated = self._scheduler.generated
        return {
            call_id: tokens
            for call_id, sequence in self._calls.items()
            if (tokens := generated(sequence))
        }

    def slow_down(self, factor: float, at: int) -> None:
        """Let steps take `factor` times as long as in the profile, from the next step on.

        Raises:
            SetupError: The factor is not a number above 0.
        """
        self._run(at * PS_PER_US)
        self._decide_anew_at(at * PS_PER_US)
        self._cost = Cost.of(self.profile.step, factor)

    def next_at(self) -> int | None:
        if self._seen:
            return self._told_to // PS_PER_US
        if self._stretch is not None:
            return _us(self._ends_at)
        begins_at = self._begins_at()
        # Decided once nothing more can be told of that instant.
        return None if begins_at is None else begins_at // PS_PER_US + 1

    def advance(self, to: int) -> list[CallProgress]:
        """Return everything that becomes visible up to `to`, and was not returned before."""
        self._run(to * PS_PER_US)
        seen, self._seen = self._seen, []
        return seen

    def _run(self, to: int) -> None:
        """Run all steps that end up to `to`. Steps that begin then may still get more calls."""
        assert to >= self._told_to, f"{to} ps is in the past, it is {self._told_to} ps"
        self._told_to = to
        while self._begin_step(to) if self._stretch is None else self._pass_steps(to):
            pass

    def _begins_at(self) -> int | None:
        if self._scheduler.has_work:
            return self._now
        return max(self._now, self._arriving[0][0]) if self._arriving else None

    def _begin_step(self, to: int) -> bool:
        begins_at = self._begins_at()
        if begins_at is None or begins_at >= to:
            return False
        self._now = begins_at
        while self._arriving and self._arriving[0][0] <= begins_at:
            self._scheduler.waiting.push(self._arriving.popleft()[1])
        step = self._scheduler.begin_step()
        for fetch in self._scheduler.caches.take_begun():
            self._see_fetch(fetch)
        if self._scheduler.is_stuck:
            return True
        self._go_on_with(self._cost.stretch(step))
        if self._arriving:
            self._decide_anew_at(self._arriving[0][0])
        return True

    def _see_fetch(self, fetch: Fetch) -> None:
        sequence = fetch.sequence
        counts = sequence.cached_tokens, sequence.preemptions, sequence.recomputed_tokens
        at = self._now // PS_PER_US + 1  # when it was decided: see `next_at`
        coming = fetch.tokens, fetch.source
        self._seen.append(CallProgress(at, "loading", sequence.call.id, *counts, *coming))

    def _go_on_from(self, at: int) -> None:
        """Decide again after an event that may let more calls fit."""
        self._run(at)
        self._decide_anew_at(at)
        self._scheduler.is_stuck = False
        if self._stretch is None:
            self._now = max(self._now, at)

    def _decide_anew_at(self, at: int) -> None:
        """No step that begins at that instant or later is decided yet."""
        if self._stretch is not None:
            self._go_on_with(self._stretch.begun_before(at - self._now))

    def _go_on_with(self, stretch: Stretch) -> None:
        self._stretch = stretch if stretch.steps else None
        self._ends_at = self._now + stretch.lasts(stretch.steps)

    def _pass_steps(self, to: int) -> bool:
        """Returns whether none is in progress any more."""
        stretch = self._stretch
        assert stretch is not None
        if to >= self._ends_at:
            self._now = self._ends_at
            self._scheduler.pass_steps(stretch.steps)
            self._stretch = None
            self._end_stretch()
            return True
        if ended := stretch.ended_within(to - self._now):
            self._now += stretch.lasts(ended)
            self._scheduler.pass_steps(ended)
            self._stretch = stretch.after(ended)
        return False

    def _end_stretch(self) -> None:
        """The last step of a stretch has ended."""
        aborted, self._aborted = self._aborted, []
        at = _us(self._now)
        for what, sequence in self._scheduler.end_step(aborted):
            if what == "finished":
                del self._calls[sequence.call.id]
            counts = sequence.cached_tokens, sequence.preemptions, sequence.recomputed_tokens
            self._seen.append(CallProgress(at, what, sequence.call.id, *counts))


def _us(ps: int) -> int:
    """Return the instant at which an event is visible, rounded up."""
    return -(-ps // PS_PER_US)
