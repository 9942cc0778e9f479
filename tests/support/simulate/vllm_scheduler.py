"""vLLM's own scheduler beside the model of it: `PYTHON -m tests.support.simulate.vllm_scheduler
MODEL --cases N`.

PYTHON has vLLM, MODEL is a directory that scripts/tiny_model.py made. vLLM's `Scheduler` decides
each step, nothing computes it, and its time is what the profile says. So the model must tell the
same, of profiles and calls that are drawn at random, with little memory. Ends at the first
difference.
"""

import argparse
import os
from copy import copy
from random import Random

os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}

import torch
import vllm.v1.request as theirs
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.structured_output import StructuredOutputManager

from kairos.core import EngineProfile, StepCost
from kairos.simulate.engine.engine import ModelledEngine
from kairos.simulate.engine.sequence import EngineCall
from kairos.simulate.workload.prompt import PromptPiece
from tests.support.simulate.reference_engine import ReferenceEngine, Request

COSTS_US = (0, 0.25, 1, 3, 7.3, 1e-6)


def scheduler(config, profile: EngineProfile) -> Scheduler:
    config = copy(config)
    config.scheduler_config = copy(config.scheduler_config)
    config.cache_config = copy(config.cache_config)
    config.scheduler_config.max_num_seqs = profile.max_num_seqs
    config.scheduler_config.max_num_batched_tokens = profile.max_num_batched_tokens
    config.scheduler_config.policy = profile.scheduling
    config.cache_config.block_size = profile.block_size
    config.cache_config.enable_prefix_caching = profile.prefix_caching
    blocks = profile.kv_tokens // profile.block_size + 1  # one is vLLM's own
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(
        block_size=profile.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    cache = KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    grammar = StructuredOutputManager(config)
    return Scheduler(config, cache, grammar, block_size=profile.block_size, log_stats=True)


class VllmEngine(ReferenceEngine):
    """Time, costs and counts are the reference's; what runs is vLLM's decision."""

    def __init__(self, config, profile: EngineProfile) -> None:
        super().__init__(profile)
        self.scheduler = scheduler(config, profile)
        self.mine: dict[str, Request] = {}
        self.tokens: dict[tuple, int] = {}  # as the numbers that vLLM wants

    @property
    def used_blocks(self):
        return self.blocks - self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def token(self, token: tuple) -> int:
        return self.tokens.setdefault(token, len(self.tokens) + 1)

    def take_in(self):
        known = set(self.waiting_requests)
        super().take_in()
        new = [request for request in self.waiting_requests if request not in known]
        for request in sorted(new, key=lambda each: each.number):
            self.mine[request.call.id] = request
            hasher = get_request_block_hasher(self.profile.block_size, sha256)
            self.scheduler.add_request(
                theirs.Request(
                    request.call.id,
                    [self.token(each) for each in request.tokens],
                    SamplingParams(max_tokens=request.call.completion_tokens, ignore_eos=True),
                    None,
                    arrival_time=float(request.number),
                    priority=request.call.priority,
                    block_hasher=hasher if self.profile.prefix_caching else None,
                )
            )

    def begin_step(self):
        ran = list(self.running_requests)
        nothing = ModelRunnerOutput(req_ids=[], req_id_to_index={})
        while not (output := self.scheduler.schedule()).num_scheduled_tokens:
            self.scheduler.update_from_output(output, nothing)
        self.output, new = output, output.num_scheduled_tokens
        for request in ran:
            preemptions = self.scheduler.requests[request.call.id].num_preemptions
            if preemptions > request.preemptions:
                request.ever_computed = max(request.ever_computed, request.computed)
                self.stats.preemptions += preemptions - request.preemptions
                request.preemptions = preemptions
        self.running_requests = [self.mine[each.request_id] for each in self.scheduler.running]
        self.waiting_requests = [self.mine[each.request_id] for each in self.scheduler.waiting]
        for request in self.running_requests:
            id_ = request.call.id
            request.computed = self.scheduler.requests[id_].num_computed_tokens - new.get(id_, 0)
        self.begun = [each for each in self.running_requests if each not in ran]
        self.begun = [each for each in self.begun if not each.preemptions]
        for request in self.begun:
            request.cached_tokens = request.computed
            self.stats.cached_tokens += request.computed
            self.stats.queried_tokens += request.prompt_tokens * self.profile.prefix_caching
        self.step_tokens = [(self.mine[id_], tokens) for id_, tokens in new.items()]
        self.step_end = self.now + self.cost(self.step_tokens)

    def end_step(self):
        ids = [request.call.id for request, _ in self.step_tokens]
        sampled = [
            [self.token(("answer", request.call.id, request.generated))] * (new == request.lacking)
            for request, new in self.step_tokens
        ]
        seen = len(self.seen)
        super().end_step()
        computed = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={id_: place for place, id_ in enumerate(ids)},
            sampled_token_ids=sampled,
        )
        outputs = self.scheduler.update_from_output(self.output, computed)
        told = outputs[0].outputs if 0 in outputs else []
        finished = [each.request_id for each in told if each.finish_reason is not None]
        assert finished == [e.call_id for e in self.seen[seen:] if e.what == "finished"]

    def remove_waiting(self, request):
        super().remove_waiting(request)
        self.scheduler.finish_requests(request.call.id, theirs.RequestStatus.FINISHED_ABORTED)

    def remove_aborted(self, request):
        super().remove_aborted(request)
        self.scheduler.finish_requests(request.call.id, theirs.RequestStatus.FINISHED_ABORTED)

    def free(self, request):
        """vLLM does."""


def any_profile(random: Random) -> EngineProfile:
    longest = random.choice([20, 40, 90])
    return EngineProfile(
        name="any",
        source="a test",
        measured=False,
        kv_tokens=random.randint(longest, longest * 3),
        block_size=random.choice([1, 2, 3, 4, 5, 8, 16]),
        max_num_seqs=random.randint(1, 9),
        max_num_batched_tokens=random.choice([random.randint(1, 9), random.randint(10, 60)]),
        max_model_len=longest,
        scheduling=random.choice(["fcfs", "priority"]),
        prefix_caching=random.random() < 0.8,
        call_us=random.choice([0, 2, 12.7]),
        step=StepCost(
            fixed_us=random.choice([0.5, 1, 2.3, 10]),
            weights_us=random.choice(COSTS_US),
            prefill_token_us=random.choice(COSTS_US),
            prefill_seq_us=random.choice(COSTS_US),
            decode_seq_us=random.choice(COSTS_US),
            kv_token_us=random.choice(COSTS_US),
            attention_us=random.choice(COSTS_US),
        ),
    )


def any_call(random: Random, number: int, profile: EngineProfile) -> EngineCall | None:
    """None: one that the engine would refuse."""
    longest = profile.max_model_len
    prompt = tuple(
        PromptPiece(random.choice("abc"), random.randint(1, longest // 4))
        for _ in range(random.randint(1, 3))
    )
    completion_tokens = random.randint(1, longest // 2)
    capacity = profile.kv_tokens // profile.block_size * profile.block_size
    tokens = sum(piece.tokens for piece in prompt) + completion_tokens
    if tokens > min(longest, capacity):
        return None
    priority = random.randint(0, 2)
    return EngineCall(
        id=str(number), prompt=prompt, completion_tokens=completion_tokens, priority=priority
    )


def compare(config, random: Random) -> int:
    """Returns how often something was preempted."""
    profile = any_profile(random)
    both = ModelledEngine(profile), VllmEngine(config, profile)
    gap, now, calls = random.choice([1, 5, 30]), 0, 0
    for _ in range(random.randint(1, 60)):
        now += random.choice([0, 0, random.randint(0, gap), random.randint(0, 4 * gap)])
        what = random.random()
        if what < 0.6:
            call = any_call(random, calls, profile)
            calls += 1
            tell(both, lambda engine, at=now, call=call: call and engine.add(call, at))
        elif what < 0.72:
            call_id = str(random.randint(max(0, calls - 6), calls))
            tell(both, lambda engine, at=now, call_id=call_id: engine.abort(call_id, at))
        elif what < 0.8:
            factor = random.choice([0.5, 1.37, 4])
            tell(both, lambda engine, at=now, factor=factor: engine.slow_down(factor, at))
        else:
            tell(both, lambda engine, at=now: engine.advance(at))
    while (at := both[0].next_at()) is not None:
        now = max(now, at)
        tell(both, lambda engine, at=now: engine.advance(at))
    assert both[1].next_at() is None
    return both[0].stats.preemptions


def tell(both, fact) -> None:
    model, real = both
    told = fact(model), fact(real)
    assert told[0] == told[1], told
    assert model.stats == real.stats, (model.stats, real.stats)
    counts = [(each.running, each.waiting, each.used_blocks) for each in both]
    assert counts[0] == counts[1], counts


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.simulate.vllm_scheduler", description=__doc__
    )
    parser.add_argument("model")
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    arguments = parser.parse_args()
    init_none_hash(sha256)
    engine = EngineArgs(
        model=arguments.model, load_format="dummy", enforce_eager=True, max_model_len=512
    )
    config = engine.create_engine_config()
    preemptions = 0
    for seed in range(arguments.seed, arguments.seed + arguments.cases):
        try:
            preemptions += compare(config, Random(seed))
        except AssertionError as error:
            error.add_note(f"--seed {seed} --cases 1")
            raise
    print(f"{arguments.cases} cases alike, with {preemptions} preemptions")


if __name__ == "__main__":
    main()
