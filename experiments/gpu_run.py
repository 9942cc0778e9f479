"""A run before two vLLM that share a GPU: what is started, what it is offered, what came of it."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean

import msgspec

from experiments.combinations import COMBINATIONS
from experiments.e29_live import LEARNT_OF, side_of, simulated
from experiments.e31_gpu import Row
from experiments.fidelity_cpu import Meter, cores
from experiments.fidelity_real import check, preemptions, serving
from experiments.placements_vllm_run import learnt_of, replay, serve_options
from experiments.placements_vllm_workload import offered
from kairos.cli.demos.engines import start_engines
from kairos.core import SECOND, EngineProfile
from kairos.simulate.workload.workflows import Submission

ENGINES = 2
FEWEST, MOST = 12, 396  # workflows of a run: they are drawn from 400
SAMPLE = 300  # workflows, to know the mean
FASTER = 3.0  # than the engines end them, workflows arrive


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What runs: engines on a device, and how much work they get."""

    device: str
    model: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    options: tuple[str, ...] = ()  # further ones, of each engine
    max_context: int  # of the workload
    run_s: float  # for so long the engines have work

    @property
    def name(self) -> str:
        """Of a profile."""
        device = self.device.removeprefix("NVIDIA ").lower().replace(" ", "-")
        return f"{device}-{self.model}"

    @property
    def limits(self) -> tuple[str, ...]:
        """As options of vLLM, and of `kairos calibrate`."""
        return (
            f"--max-num-seqs={self.max_num_seqs}",
            f"--max-num-batched-tokens={self.max_num_batched_tokens}",
        )


# Of an H200's 140 GiB: each of two has 15 GiB of weights. They are told how much to keep for KV,
# since they start at once, and each would take for its own what the other has taken meanwhile.
_KV_BYTES = 40 << 30
_GPU = Setting(
    device="",
    model="llama3-8b",
    max_model_len=8192,
    max_num_seqs=16,
    max_num_batched_tokens=2048,
    options=("--gpu", "--gpu-memory-utilization=0.45", f"--kv-cache-memory-bytes={_KV_BYTES}"),
    max_context=1024,
    run_s=30.0,
)
# With vLLM's own limits on a GPU of that size.
_WHOLE_GPU = msgspec.structs.replace(
    _GPU,
    max_num_seqs=1024,
    max_num_batched_tokens=8192,
    options=("--gpu", "--gpu-memory-utilization=0.9"),
)
_CPU = Setting(
    device="CPU",
    model="tiny",
    max_model_len=768,
    max_num_seqs=4,
    max_num_batched_tokens=512,
    options=("--num-gpu-blocks-override=96",),
    max_context=512,
    run_s=3.0,
)


def setting(device: str | None, *, shared: bool) -> Setting:
    """`device`: a GPU's name; None: the CPU. `shared` by two engines, else one's alone."""
    if device is None:
        return _CPU
    return msgspec.structs.replace(_GPU if shared else _WHOLE_GPU, device=device)


def gpu() -> str | None:
    """The name of this machine's first NVIDIA GPU; None: it has none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return (done.stdout.partition("\n")[0].strip() or None) if done.returncode == 0 else None


@asynccontextmanager
async def engines(
    on: Setting, count: int, others: Sequence[str], tell: Callable[[str], None]
) -> AsyncIterator[list[str]]:
    """Their URLs. `others`: options of vLLM that win over those of the setting."""
    words = [f"--model={on.model}", f"--max-model-len={on.max_model_len}", *on.limits]
    words += [*on.options, *others]
    async with start_engines("vllm", count, options=words, on_progress=tell) as urls:
        yield urls


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What a run offers."""

    workflows: int
    rate_per_s: float
    max_context: int

    def of(self, repetition: int) -> list[Submission]:
        return offered(self.workflows, self.rate_per_s, repetition, self.max_context)


def load(engine: EngineProfile, on: Setting) -> Load:
    """As many workflows as ENGINES of these end in `run_s`, as busy as they can be, but not more
    than MOST: very quick engines have ended them sooner."""
    sample = [each.workflow for each in offered(SAMPLE, 1.0, LEARNT_OF, on.max_context)]
    prompts = fmean(sum(call.prompt_tokens for call in each.calls) for each in sample)
    answers = fmean(sum(call.completion_tokens for call in each.calls) for each in sample)
    calls = fmean(len(each.calls) for each in sample)
    held = (prompts + answers / 2) / calls  # tokens, by a call under way
    step, at_once = engine.step, engine.max_num_seqs
    step_us = step.fixed_us + max(step.weights_us, step.decode_seq_us * at_once)
    step_us += step.kv_token_us * held * at_once
    took_us = answers * step_us / at_once
    took_us += prompts * step.prefill_token_us + calls * step.prefill_seq_us
    per_s = ENGINES * SECOND / took_us
    count = min(MOST, max(FEWEST, round(per_s * on.run_s / FEWEST) * FEWEST))
    rate_per_s = float(f"{FASTER * per_s:.3g}")
    return Load(workflows=count, rate_per_s=rate_per_s, max_context=on.max_context)


class Pair:
    """Two engines that run, and what every run before them begins with."""

    def __init__(self, urls: Sequence[str], on: Setting, engine: EngineProfile) -> None:
        """`engine`: what each was found to be, both busy at once."""
        self.load = load(engine, on)
        self._urls, self._on, self._engine = urls, on, engine
        self._before = self.load.of(LEARNT_OF)

    async def learn(self) -> bytes:
        """What a Kairos keeps of a run before all others.

        Raises:
            SetupError: Kairos did not start, or some workflow did not come to its end.
        """
        return await learnt_of(self._urls, self._on.max_num_seqs, self._before, "kairos")

    async def run(
        self, learnt: bytes, at_commit: str, repetition: int, place: int, name: str
    ) -> Row:
        """Play this repetition under the combination of this name.

        Raises:
            SetupError: as of `learn`.
        """
        policy, placement = COMBINATIONS[name].policy, COMBINATIONS[name].placement
        submissions = self.load.of(repetition)
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "learnt.json"
            file.write_bytes(learnt)
            options = serve_options(self._urls, self._on.max_num_seqs, policy, placement, file)
            async with serving(options, len(self._urls)) as (process, url):
                meter, preempted = Meter(process.pid), await preemptions(self._urls)
                began_at, used = time.monotonic(), meter.read()
                replayed = await replay(url, submissions)
                used_by = cores(used, meter.read(), time.monotonic() - began_at)
                preempted = await preemptions(self._urls) - preempted
        check(replayed)
        calls = len(replayed.rows)
        return Row(
            commit=at_commit,
            repetition=repetition,
            place=place,
            combination=name,
            workflows=len(submissions),
            calls=calls,
            measured=side_of(replayed.metrics, preempted / calls),
            simulated=simulated(self._engine, self._before, submissions, policy, placement),
            others_cores=used_by.others,
            profile=self._engine,
            device=self._on.device,
            rate_per_s=self.load.rate_per_s,
            max_context=self.load.max_context,
            elapsed_s=round(replayed.elapsed_s, 3),
        )
