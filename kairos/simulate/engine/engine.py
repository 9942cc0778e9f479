"""The model: see `ModelledEngine`."""

from collections import deque

from kairos.core.engine_profile import EngineProfile
from kairos.core.errors import InvalidRequest, SetupError
from kairos.simulate.engine.blocks import contents_of
from kairos.simulate.engine.cost import PS_PER_US, Cost, Stretch
from kairos.simulate.engine.engine_calls import CallProgress, EngineCall, EngineStats
from kairos.simulate.engine.fetched_caches import Fetch
from kairos.simulate.engine.host_tier import HostTier
from kairos.simulate.engine.scheduler import Scheduler
from kairos.simulate.engine.sequence import Sequence
from kairos.simulate.workload.prompt import Prompt, length


class ModelledEngine:
    """One instance of vLLM in virtual time (µs). Pure: whoever drives it tells it the time.

    Facts are told in order of time, each at its instant or later than what was advanced to.
    `next_at` says when to `advance` next: nothing is seen before then, and most often something
    is then.

    As vLLM 0.32 schedules (V1, without async scheduling): in each step what runs gets its next
    token, or as much of its prompt as the step's budget allows; then what waits is admitted, from
    the front, while sequences, budget and blocks allow and its whole prompt fits. Where a block is
    missing, the newest, or by priority the least important, is preempted and later computes all
    of it again that it does not find in the prefix cache, and nothing is admitted in that step.
    Full blocks can be found as soon as their step begins; those that nobody uses any more make
    room in the order in which that became so, a sequence's last one first.

    A step is decided when the one before it ended, or when a call reaches an idle engine; then it
    takes in what has arrived. A token is seen when its step ends. What is aborted meanwhile is
    not seen any more, and gives its blocks back at the end of the step.

    That much is checked against vLLM's own scheduler (tests/support/vllm_scheduler.py). Its
    deviations: an answer's tokens are nobody else's, so a prompt that goes on with an answer does
    not find it, unless the call says what they are, and then once it has ended; a step in which
    all that had its turn was preempted takes no time; of calls of the same priority and instant,
    the one told first is the older; `kv_tokens` are without the block that vLLM keeps for itself;
    an answer ends by its length alone.

    Not modelled: async scheduling (vLLM's default on GPUs, not on CPUs: a step is scheduled while
    the one before it runs, so what arrives waits for one more), speculative decoding, a threshold
    for long prompts and a watermark of free blocks (both off by default), models with sliding
    windows or with state instead of full attention, LoRA, images, and parallelism of data or
    pipeline. Of KV connectors: those of `fetched_caches.py`.
    """

    def __init__(self, profile: EngineProfile, tier: HostTier | None = None) -> None:
        """`tier`: where its full blocks are copied to, and can be fetched from.

        Raises SetupError: a step would take no time by this profile, or there are no blocks.
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
        """Calls that were told and do not run, those that are still on their way included."""
        return len(self._scheduler.waiting) + len(self._arriving)

    @property
    def used_blocks(self) -> int:
        pool = self._scheduler.memory.pool
        used = pool.blocks - pool.free
        if self._stretch is not None and self._told_to > self._now:
            used += self._scheduler.blocks_to_allocate()
        return used

    def add(self, call: EngineCall, at: int) -> None:
        """Raises InvalidRequest: such a call can never be served (vLLM answers 400)."""
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
        """Raises InvalidRequest: see `add`."""
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

    def hold(self, prompt: Prompt) -> None:
        """Its full blocks are there from now on, computed in no time, and are never made room of:
        what engines do that pin beginnings of prompts. vLLM has no such thing.

        Raises SetupError: there is no room for them.
        """
        if not self.profile.prefix_caching:
            return
        self._scheduler.memory.hold(contents_of(prompt, self.profile.block_size))

    def abort(self, call_id: str, at: int) -> None:
        """A call that ended already, or was never told, is nothing to abort."""
        self._run(at * PS_PER_US)
        sequence = self._calls.pop(call_id, None)
        if sequence is None:
            return
        self._go_on_from(at * PS_PER_US)
        arriving = [entry for entry in self._arriving if entry[1] is sequence]
        if arriving:
            self._arriving.remove(arriving[0])
        elif sequence.turn is None or self._stretch is None:
            self._scheduler.drop(sequence)
        else:
            self._aborted.append(sequence)

    def fetched(self, call_id: str, at: int, *, came: bool = True) -> None:
        """What a call that is `loading` waits for is here, or it is lost, and the call computes
        its prompt itself. Told of each, of those that were aborted, too."""
        self._go_on_from(at * PS_PER_US)
        self._scheduler.fetched(call_id, came=came)

    def release_cache(self, call_id: str, at: int) -> None:
        """What a call kept was read, or nobody will; one that keeps nothing is nothing to do."""
        self._go_on_from(at * PS_PER_US)
        self._scheduler.caches.release(call_id)

    def generated(self, at: int) -> dict[str, int]:
        """How many tokens of its answer each call has had so far that has had any, and has not
        ended; in the order in which they were told."""
        self._run(at * PS_PER_US)
        generated = self._scheduler.generated
        return {
            call_id: tokens
            for call_id, sequence in self._calls.items()
            if (tokens := generated(sequence))
        }

    def slow_down(self, factor: float, at: int) -> None:
        """From the next step on, steps take `factor` times as long as the profile says.

        Raises SetupError: the factor is not a number above 0.
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
        """What is seen up to then, and was not returned before."""
        self._run(to * PS_PER_US)
        seen, self._seen = self._seen, []
        return seen

    def _run(self, to: int) -> None:
        """All steps that end up to then. Those that begin then may be told of more."""
        assert to >= self._told_to, f"{to} ps is in the past, it is {self._told_to} ps"
        self._told_to = to
        while self._begin(to) if self._stretch is None else self._pass_steps(to):
            pass

    def _begins_at(self) -> int | None:
        if self._scheduler.has_work:
            return self._now
        return max(self._now, self._arriving[0][0]) if self._arriving else None

    def _begin(self, to: int) -> bool:
        begins_at = self._begins_at()
        if begins_at is None or begins_at >= to:
            return False
        self._now = begins_at
        while self._arriving and self._arriving[0][0] <= begins_at:
            self._scheduler.waiting.push(self._arriving.popleft()[1])
        step = self._scheduler.begin()
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
        """Something happens by which more may fit: from then on all is decided anew."""
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
            self._end()
            return True
        if ended := stretch.ended_within(to - self._now):
            self._now += stretch.lasts(ended)
            self._scheduler.pass_steps(ended)
            self._stretch = stretch.after(ended)
        return False

    def _end(self) -> None:
        """The last step of a stretch has ended."""
        aborted, self._aborted = self._aborted, []
        at = _us(self._now)
        for what, sequence in self._scheduler.end(aborted):
            if what == "finished":
                del self._calls[sequence.call.id]
            counts = sequence.cached_tokens, sequence.preemptions, sequence.recomputed_tokens
            self._seen.append(CallProgress(at, what, sequence.call.id, *counts))


def _us(ps: int) -> int:
    """When what happens then can be seen: rounded up."""
    return -(-ps // PS_PER_US)
