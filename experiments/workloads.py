"""What is compared on: workflows, how they arrive, and the pool that serves them.

- `colocated-13b`, `colocated-8b`: QA, RG and CG together, as in traces/scenarios, on A40s. With
  Llama-2-13B memory binds; with Llama-3-8B sequences and compute do.
- `claude_code`: recorded sessions of a coding agent, of which 96 % of the prompt tokens were in a
  prefix cache, on Llama-2-13B. Left out are sessions with a context of more than 200,000 tokens
  (144 of 676), which only some models take, and of the others those of more than 70 calls (192),
  since a load is made of hundreds of sessions, and a run of what a minute of computing allows.
  Contexts are scaled to the 4,096 tokens of the model: all prompts, with what was cached of them,
  by one factor (1/51), and answers by another, so that the longest has half of that (1/9). An
  instance then holds 12 contexts of mean length: as many as eight H100 with a model of 70 billion
  weights hold of the recorded ones.
  The gaps before calls are scaled by the prompts' factor too, users' time and tools' alike: a
  session whose context is so much smaller comes back so much sooner, and a user's two minutes (the
  median) are two seconds. At their full length, half an hour in the median session, they would be
  most of the end-to-end latency, whatever serves the calls. Gaps of more than ten minutes (4 %, up
  to 21 hours: somebody was away) count as ten.
- `tau_bench`, `magentic_one`, `ag2`: recorded too, without gaps, and without a word on what was
  cached, so nothing is; contexts scaled to the same model.

There are four instances; two where more workflows would be needed to fill the queue of four than a
minute of computing allows (`colocated-8b`, `magentic_one`).

Arrivals are as bursty as Azure's conversations where the paper's applications come together, else
Poisson; the rates are those of rates.py.
"""

from msgspec.structs import replace

from experiments.workload import COMPUTE_BINDS, Workload

QA, RG, CG = ("qa", 3.0), ("rg", 2.0), ("cg", 1.0)  # with their weights: traces/scenarios

_COLOCATED = Workload(
    name="colocated-8b", apps=(QA, RG, CG), profile=COMPUTE_BINDS, workflows=4000, pool=2
)
_ALL = (
    Workload(name="colocated-13b", apps=(QA, RG, CG), workflows=1200),
    _COLOCATED,
    replace(_COLOCATED, name="answers half as long", lengths=0.5),
    replace(_COLOCATED, name="answers 1.5 times as long", lengths=1.5),
    replace(_COLOCATED, name="branches half as likely", branches=0.5),
    replace(_COLOCATED, name="branches 1.5 times as likely", branches=1.5),
    replace(_COLOCATED, name="unequal instances", unequal=True),
    replace(_COLOCATED, name="bursts", arrivals="azure-code"),
    replace(_COLOCATED, name="agents change", turns=True),
    replace(_COLOCATED, name="30 % anonymous", anonymous=0.3),
    Workload(name="a cold start", apps=(QA, RG, CG), workflows=300, pool=1),
    *(
        Workload(name=name, recorded=app, arrivals="poisson", workflows=workflows, pool=pool)
        for name, app, workflows, pool in (
            ("claude_code", "claude_code", 350, 4),
            ("tau_bench", "tau_bench_airline", 600, 4),
            ("magentic_one", "magentic_one_gaia", 500, 2),
            ("ag2", "ag2_captain_gaia", 2500, 4),
        )
    ),
    *(
        Workload(name=app, apps=((app, 1.0),), profile=COMPUTE_BINDS, workflows=workflows, pool=1)
        for app, workflows in (
            ("qa", 4000),
            ("qa-ss", 4000),
            ("rg", 1500),
            ("rg-nq", 1500),
            ("cg", 1000),
            ("cg-mbpp", 1200),
        )
    ),
)
WORKLOADS = {each.name: each for each in _ALL}
