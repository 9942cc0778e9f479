"""Measurement of engines' step times through their API: which calls run, when tokens arrive.

Three kinds of runs, each on all engines at once, so that they share the machine as they will:

    alone    one prompt at a time, for one token: from sending to the token
    decode   n calls at once, at short and at long contexts: while all of them run
    mixed    n callers that make one call after another, with lengths drawn at random, concurrently
             with one long call, the pacer: each of its tokens is a step

An engine's work in a step follows from the arrival times of all calls' tokens. Times that an engine
reports itself are not used: a model has to predict clients' times, and they can be measured with
every engine.
"""

import asyncio
import math
import os
import platform
import random
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeVar

import msgspec

from kairos.core import EngineProfile, SetupError
from kairos.engines import profile_to_toml
from kairos.proxy import Upstream
from kairos.simulate.engine.fitting import Fit, Steps, fit_step_cost
from kairos.simulate.measured_engine import Facts, Generated, MeasuredEngine, session

T = TypeVar("T")

PROMPT_SHARES = (0.01, 0.06, 0.12, 0.25, 0.5, 0.9)  # of the context: prompts alone
DECODE_SHARES = (0.01, 0.15, 0.5)  # of the context: where decoding begins
DECODE_AT_ONCE = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MIXED_SHARES = (0.01, 0.25)  # of the context: the shortest and the longest prompt
MIXED_AT_ONCE = (2, 4, 8, 12, 16)
MIXED_ANSWER_TOKENS = 48  # the longest
ALONE_REPEATS = 3
KV_SHARE = 0.9  # of what the engine holds: nothing may wait, or be preempted
FEWEST_STEPS, MOST_STEPS = 16, 400
FEWEST_TOKENS = 64  # of context, so that all of these shares are different lengths

US = 1_000_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_URL = re.compile(r"https?://[^\s/@,]+")


class CalibrationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of a calibration. A run of many calls that would take longer is left out.

    Not `streamed`: of concurrent calls only the pacer is streamed, as flows and batches call
    engines.
    """

    streamed: bool = True
    rounds: int
    decode_s: float
    mixed_s: float
    longest_run_s: float


FULL_CALIBRATION = CalibrationPlan(rounds=3, decode_s=2.5, mixed_s=10.0, longest_run_s=15.0)
QUICK_CALIBRATION = CalibrationPlan(rounds=1, decode_s=1.2, mixed_s=5.0, longest_run_s=6.0)


class MeasuredRoom(msgspec.Struct, frozen=True, kw_only=True):
    """Capacity that every one of the engines has, in total and per step."""

    context_tokens: int
    kv_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int

    def share(self, share: float) -> int:
        return max(1, int(share * self.context_tokens))

    def fits(self, at_once: int, tokens_each: int) -> bool:
        return at_once <= self.max_num_seqs and at_once * tokens_each <= KV_SHARE * self.kv_tokens


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Observations of engines that are alike."""

    engines: int
    facts: Facts  # of the first; they are alike
    room: MeasuredRoom
    seen: list[Steps]
    streamed: bool


class CalibrationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `kairos calibrate`, by their names there.

    Limits that the engines report take precedence.
    """

    engines: Sequence[str]  # their URLs
    api_key: str | None = None
    name: str | None = None  # of the profile; None: the model's
    model: str | None = None  # None: the first that the engine serves
    max_num_seqs: int
    max_num_batched_tokens: int
    scheduling: Literal["fcfs", "priority"] = "fcfs"
    kv_tokens: int | None = None
    max_model_len: int | None = None
    quick: bool = False
    streamed: bool = True

    def check(self) -> None:
        """Raise SetupError if a URL or the name is not valid."""
        for url in self.engines:
            if not _URL.fullmatch(url.rstrip("/")):
                raise SetupError("--engine takes the URL of an engine, as in http://gpu1:8000")
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise SetupError("--name takes letters, digits, '.', '_' and '-', 100 at most")


class CalibratedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """Profile of an engine as measured, and how well the model of its steps fits."""

    profile: EngineProfile
    fit: Fit

    def to_toml(self) -> str:
        """Return the content of the profile's file."""
        return profile_to_toml(self.profile)


async def calibrate_engines(
    asked: CalibrationOptions, tell: Callable[[str], None]
) -> CalibratedEngine:
    """Measure engines that are alike, all at once, and fit a profile. `tell`: as `measure_engines`.

    Raises:
        SetupError: an engine cannot be used, or does not do what it was asked to.
    """
    upstreams = [Upstream(url, url, asked.api_key) for url in dict.fromkeys(asked.engines)]
    plan = QUICK_CALIBRATION if asked.quick else FULL_CALIBRATION
    plan = msgspec.structs.replace(plan, streamed=asked.streamed)
    measured = await measure_engines(upstreams, asked, plan, tell)
    found = fit_step_cost(measured.seen)
    room, facts = measured.room, measured.facts
    profile = EngineProfile(
        name=asked.name or re.sub(r"[^A-Za-z0-9._-]", "-", facts.model).lstrip("._-") or "engine",
        source=_source(measured, found),
        measured=True,
        kv_tokens=room.kv_tokens,
        block_size=facts.block_size or 16,
        max_num_seqs=room.max_num_seqs,
        max_num_batched_tokens=room.max_num_batched_tokens,
        max_model_len=room.context_tokens,
        scheduling=asked.scheduling,
        prefix_caching=facts.prefix_caching is not False,
        call_us=found.call_us,
        step=found.step,
    )
    return CalibratedEngine(profile=profile, fit=found)


def _source(measured: Measured, found: Fit) -> str:
    facts = measured.facts
    engines = f"{measured.engines} x {facts.model} on {facts.software}, all busy at once"
    answers = "streamed" if measured.streamed else "whole"
    lines = [
        f"measured by kairos calibrate on {datetime.now(UTC):%Y-%m-%d}: {engines}",
        f"answers came {answers}",
        f"from a client on a host with {os.cpu_count()} x {_cpu()}, load {os.getloadavg()[0]:.1f}",
        "max_num_seqs, max_num_batched_tokens and scheduling are as told to kairos calibrate",
        *found.table().splitlines(),
    ]
    return "\n".join(lines) + "\n"


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


async def measure_engines(
    upstreams: Sequence[Upstream],
    asked: CalibrationOptions,
    plan: CalibrationPlan,
    tell: Callable[[str], None],
) -> Measured:
    """Measure engines that are alike, all at once. `tell` gets a line before every run.

    Cancelled, it leaves no call behind: its connections close, and engines abort what was on them.

    Raises:
        SetupError: an engine cannot be used, or does not do what it was asked to.
    """
    async with session() as http:
        probes = [MeasuredEngine(http, upstream) for upstream in upstreams]
        facts = await together([probe.facts(asked.model) for probe in probes])
        room = _room(facts, asked)
        tell(
            f"{len(probes)} x {facts[0].model} on {facts[0].software}: context "
            f"{room.context_tokens}, {room.kv_tokens} KV tokens; taken from your options: "
            f"max_num_seqs {room.max_num_seqs}, max_num_batched_tokens "
            f"{room.max_num_batched_tokens}"
        )
        seen = await Calibration(probes, room, plan, tell).measure()
        return Measured(
            engines=len(probes), facts=facts[0], room=room, seen=seen, streamed=plan.streamed
        )


def _room(facts: Sequence[Facts], asked: CalibrationOptions) -> MeasuredRoom:
    if len({(each.model, each.block_size, each.prefix_caching) for each in facts}) > 1:
        raise SetupError("the engines differ in model or settings: calibrate them one by one")
    return MeasuredRoom(
        context_tokens=_least(
            [f.max_model_len for f in facts], asked.max_model_len, "max-model-len"
        ),
        kv_tokens=_least([f.kv_tokens for f in facts], asked.kv_tokens, "kv-tokens"),
        max_num_seqs=asked.max_num_seqs,
        max_num_batched_tokens=asked.max_num_batched_tokens,
    )


def _least(told: Sequence[int | None], given: int | None, option: str) -> int:
    known = [each or given for each in told]
    if None in known:
        raise SetupError(f"the engine does not tell its {option}: say it with --{option} N")
    least = min(each for each in known if each is not None)
    if least < FEWEST_TOKENS:
        raise SetupError(f"a {option} of {least} is too little to measure: {FEWEST_TOKENS} or more")
    return least


class Calibration:
    """Makes the runs on all engines and keeps what was seen."""

    def __init__(
        self,
        probes: Sequence[MeasuredEngine],
        room: MeasuredRoom,
        plan: CalibrationPlan,
        tell: Callable[[str], None],
    ) -> None:
        self.seen: list[Steps] = []
        self._probes, self._room, self._plan, self._tell = probes, room, plan, tell
        self._step_s = 0.0  # of the run before
        self._prefill_s = 0.0  # of a token of a long prompt
        self._dice = random.Random()  # noqa: S311 - lengths

    async def measure(self) -> list[Steps]:
        """Return all observations."""
        prompts = [self._room.share(share) for share in PROMPT_SHARES]
        self._tell(f"warming up with prompts of {prompts[0]} to {prompts[-1]} tokens")
        for tokens in prompts:  # what an engine does for the first time takes longer
            await self._on_all(self._alone, tokens)
        for number in range(1, self._plan.rounds + 1):
            self._tell(f"round {number} of {self._plan.rounds}: prompts of {prompts} tokens alone")
            for tokens in prompts * ALONE_REPEATS:
                self.seen += await self._on_all(self._alone, tokens)
            self._learn_pace()
            for share in DECODE_SHARES:
                await self._decode_at(self._room.share(share))
            for at_once in sorted({min(n, self._room.max_num_seqs - 1) for n in MIXED_AT_ONCE}):
                longest = self._room.share(MIXED_SHARES[1]) + MIXED_ANSWER_TOKENS
                beside = at_once * longest + self._room.context_tokens
                if at_once and beside <= KV_SHARE * self._room.kv_tokens:
                    self._tell(f"{at_once} callers at once, prompts and answers mixed")
                    self.seen += await self._on_all(self._mixed, at_once)
        return self.seen

    def _learn_pace(self) -> None:
        alone = [each for each in self.seen if each.calls]
        longest = max(each.prefill_tokens for each in alone)
        self._step_s = min(each.took_us for each in alone) / US
        took_us = median(each.took_us for each in alone if each.prefill_tokens == longest)
        self._prefill_s = took_us / longest / US

    async def _decode_at(self, context: int) -> None:
        """More and more calls at once, as long as they fit and do not take too long."""
        room, plan = self._room, self._plan
        for at_once in DECODE_AT_ONCE:
            most = min(MOST_STEPS, room.context_tokens - context)
            tokens = min(most, max(FEWEST_STEPS, int(plan.decode_s / self._step_s)))
            expected_s = at_once * context * self._prefill_s + tokens * self._step_s
            if expected_s > plan.longest_run_s or not room.fits(at_once, context + tokens):
                return
            self._tell(f"{at_once} calls at once, of {context} + {tokens} tokens")
            found = await self._on_all(self._decode, at_once, context, tokens)
            if not found:  # all tokens of a call came at once: the engine does not really stream
                return
            self._step_s = median([each.took_us / each.steps for each in found]) / US
            self.seen += found

    async def _on_all(
        self, run: Callable[..., Coroutine[Any, Any, Steps | None]], *arguments: int
    ) -> list[Steps]:
        found = await together([run(probe, *arguments) for probe in self._probes])
        await together([probe.idle() for probe in self._probes])
        return [each for each in found if each is not None]

    async def _alone(self, probe: MeasuredEngine, prompt_tokens: int) -> Steps:
        call = Generated(prompt_tokens, 1)
        await probe.generate(call)
        budget = self._room.max_num_batched_tokens
        return steps_alone(call, max_num_batched_tokens=budget)

    async def _decode(
        self, probe: MeasuredEngine, at_once: int, prompt_tokens: int, tokens: int
    ) -> Steps | None:
        streamed = self._plan.streamed
        calls = [Generated(prompt_tokens, tokens, streamed=streamed) for _ in range(at_once - 1)]
        calls.append(Generated(prompt_tokens, tokens))
        await together([probe.generate(call) for call in calls])
        pacer = max(calls, key=lambda call: call.events_at[0]) if streamed else calls[-1]
        _pace(calls, pacer)
        begins_at = max(call.events_at[0] for call in calls)
        window = (begins_at, min(call.events_at[-1] for call in calls))
        group = f"decode at {prompt_tokens}"
        budget = self._room.max_num_batched_tokens
        return steps_between(group, calls, pacer, window, max_num_batched_tokens=budget)

    async def _mixed(self, probe: MeasuredEngine, at_once: int) -> Steps | None:
        shortest, longest = (self._room.share(share) for share in MIXED_SHARES)
        pacer = Generated(shortest, self._room.context_tokens - shortest)
        calls = [pacer]

        async def caller() -> None:
            while True:
                # As many short ones as long ones: prompts of agents differ by orders of magnitude.
                tokens = int(shortest * (longest / shortest) ** self._dice.random())
                answer = self._dice.randint(1, MIXED_ANSWER_TOKENS)
                call = Generated(tokens, answer, streamed=self._plan.streamed)
                calls.append(call)
                await probe.generate(call)

        async def pace() -> None:
            await probe.generate(pacer)
            raise TimeoutError  # the callers end with it

        with suppress(TimeoutError):
            async with asyncio.timeout(self._plan.mixed_s):
                await together([pace(), *(caller() for _ in range(at_once))])
        until = [time.perf_counter()]
        if not self._plan.streamed:  # of what has not ended nothing is known
            until += [call.sent_at for call in calls[1:] if not call.whole]
            calls = [pacer, *(call for call in calls[1:] if call.whole)]
            _pace(calls, pacer)
        firsts = sorted(call.events_at[0] for call in calls if call.events_at)
        if len(firsts) <= at_once:
            return None
        budget = self._room.max_num_batched_tokens
        window = (firsts[at_once], min(until))
        return steps_between("mixed", calls, pacer, window, max_num_batched_tokens=budget)


def _pace(calls: Sequence[Generated], pacer: Generated) -> None:
    for call in calls:
        if not call.streamed:
            estimate_arrivals(call, pacer)


async def together(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently. The first error cancels the others, and is raised unwrapped."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def steps_alone(call: Generated, *, max_num_batched_tokens: int) -> Steps:
    """A call while nothing else ran: from its sending to its first token."""
    steps = math.ceil(call.prompt_tokens / max_num_batched_tokens)
    return Steps(
        group="prompts alone",
        took_us=(call.events_at[0] - call.sent_at) * US,
        calls=1,
        steps=steps,
        prefill_steps=steps,
        prefill_tokens=call.prompt_tokens,
        prefill_seqs=1,
        attention_pairs=_pairs(call.prompt_tokens),
    )


def steps_between(
    group: str,
    calls: Sequence[Generated],
    pacer: Generated,
    window: tuple[float, float],
    *,
    max_num_batched_tokens: int,
) -> Steps | None:
    """Return the work between two tokens of `pacer`, which is one of the calls: each is a step.

    A prompt counts where its first token came. None if the window has no step.
    """
    paces = [at for at, _ in pacer.tokens_at() if window[0] <= at <= window[1]]
    if len(paces) < 2 or paces[-1] == paces[0]:
        return None
    start, end = paces[0], paces[-1]
    begun: list[tuple[float, int]] = []  # when a prompt was done, and its tokens
    decode_seqs = kv_tokens = 0
    for call in calls:
        for at, first, last in _arrivals(call):
            if start < at <= end:
                if first == 1:
                    begun.append((at, call.prompt_tokens))
                decoded = range(max(first, 2), last + 1)
                decode_seqs += len(decoded)
                kv_tokens += sum(call.prompt_tokens + number - 1 for number in decoded)
    steps = sum(last - first + 1 for at, first, last in _arrivals(pacer) if start < at <= end)
    prefill_tokens = sum(tokens for _, tokens in begun)
    # More than one prompt may be in a step, and more than one step may be needed for a prompt.
    shared = len({bisect_right(paces, at) for at, _ in begun})
    chunks = prefill_tokens / max_num_batched_tokens
    return Steps(
        group=group,
        took_us=(end - start) * US,
        steps=steps,
        prefill_steps=min(steps, max(shared, chunks)),
        prefill_tokens=prefill_tokens,
        prefill_seqs=len(begun),
        decode_seqs=decode_seqs,
        kv_tokens=kv_tokens,
        attention_pairs=sum(_pairs(tokens) for _, tokens in begun),
    )


def estimate_arrivals(call: Generated, pacer: Generated) -> None:
    """Estimate when the tokens of a call that was not streamed came.

    One came with each of the pacer's, as every running call gets one in each step, and the last
    when the call ended. Earlier ones count with the pacer's first.
    """
    paces = [at for at, first, last in _arrivals(pacer) for _ in range(first, last + 1)]
    ended_at = call.events_at[-1]
    after = min(bisect_right(paces, ended_at), len(paces) - 1)
    before = max(after - 1, 0)
    # The same step's answers reach us at about the same time, in any order.
    end = before if ended_at - paces[before] < paces[after] - ended_at else after
    call.events_at = paces[max(0, end - call.completion_tokens + 1) : end + 1]


def _arrivals(call: Generated) -> Iterator[tuple[float, int, int]]:
    """Yield when an event came, with the numbers of its first and last token."""
    before = 0
    for at, number in call.tokens_at():
        yield at, before + 1, number
        before = number


def _pairs(tokens: int) -> int:
    return tokens * (tokens + 1) // 2
