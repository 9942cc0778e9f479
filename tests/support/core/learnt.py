"""Builders for what is learnt: samples of calls, and profiles of agents."""

from random import Random

from kairos.core import (
    FEATURES,
    QUANTILES,
    AgentProfile,
    Distribution,
    ProfilesLearnt,
    RemainingModel,
)
from kairos.core.orchestrator.profiles import CallSample
from kairos.core.position import Position


def sample(agent="writer", us=1_000_000, *, app="app", tenant="t", visit=1, **fields):
    """A call whose workflow ends with it, unless told otherwise. Each is a workflow's first."""
    fields.setdefault("position", Position(prompt_tokens=100, visit=visit))
    fields.setdefault("remaining_us", us)
    fields.setdefault("remaining_stages", 1)
    fields.setdefault("completion_tokens", 50)
    return CallSample(key=(tenant, app, agent), call_us=us, **fields)


def samples(count, *, mean_us=1_000_000, spread=0.4, seed=0, **fields):
    """Calls whose times scatter about a mean as those of language models do: log-normal."""
    random = Random(seed)
    return [
        sample(us=max(1, int(mean_us * random.lognormvariate(-(spread**2) / 2, spread))), **fields)
        for _ in range(count)
    ]


def distribution(values):
    """The quantiles of these values, each as often as the next."""
    ordered = sorted(values)
    quantiles = tuple(float(ordered[i * len(ordered) // QUANTILES]) for i in range(QUANTILES))
    return Distribution(mean=sum(quantiles) / QUANTILES, quantiles=quantiles)


def always(value):
    """A distribution that is this value each time."""
    return Distribution(float(value), (float(value),) * QUANTILES)


def known(answers, token_us, tenants=("default",)):
    """Profiles of agents `agentN`: each always says N tokens."""
    return ProfilesLearnt(
        tuple(
            profile(
                f"agent{n}",
                [n * token_us],
                tenant=tenant,
                call_us=always(n * token_us),
                completion_tokens=always(n),
            )
            for n in answers
            for tenant in tenants
        )
    )


def profile(agent, remaining_us, *, app="app", tenant="t", samples=QUANTILES, **fields):
    """An agent whose remaining work is one of these values at random."""
    remaining = distribution(remaining_us)
    return AgentProfile(
        tenant=tenant,
        app=app,
        agent=agent,
        samples=samples,
        converged=fields.get("converged", True),
        call_us=fields.get("call_us", remaining),
        completion_tokens=fields.get("completion_tokens"),
        remaining_us=remaining,
        remaining_stages=fields.get("remaining_stages", 1.0),
    )


def model(app="a", *, tenant="default", **fields):
    """A model of what remains that tells every call the same, unless its fields say otherwise."""
    same = {
        "samples": 100,
        "intercept": 0.0,
        "weights": (0.0,) * FEATURES,
        "lowest": (0.0,) * FEATURES,
        "highest": (0.0,) * FEATURES,
        "agents": {},
        "residuals": (0.0,),
    }
    return RemainingModel(tenant=tenant, app=app, **same | fields)
