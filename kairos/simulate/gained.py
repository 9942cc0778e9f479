"""Gains by Kairos: the workflows of a log's last hour, simulated under other policies.

The same workflows arrive at the same instants, and agents and tools take as long between calls as
they did. The first simulation uses the policy that served them: its deviation from what really
happened measures the model's error. Then others follow. Simulations are compared only with each
other, so errors of the model that affect both cancel out.

Differences to reality: a policy begins without learnt profiles; workflows that had begun before, or
have not ended, and failed calls are left out, with their load (`share` says what remains); all
workflows count as one tenant's. If engines serve different models, only the model with the most
calls is simulated.

The interval is from a bootstrap over stretches of time (`confidence.py`), since workflows that wait
for the same engines are not independent of each other.
"""

from collections.abc import Callable, Sequence
from math import isnan
from pathlib import Path
from statistics import fmean

from kairos.core import SECOND, CallRow, Interval, SetupError, percentile, ratio_interval
from kairos.gateway import Gained, Predicted, Trust, Verdict, WorkflowTimes
from kairos.simulate.counterfactual import Counterfactual, Decided, of_one_model
from kairos.simulate.logged_engines import LoggedEngines, logged_engines
from kairos.simulate.recent_log import RecentLog
from kairos.simulate.recording import has_length

# What is asked about beside the policy that served; where it is one of them, Kairos's own instead.
BASELINES = (Decided("fcfs", "round-robin"), Decided("fcfs", "least-kv"))
KAIROS = Decided("kairos", "kairos")
FEWEST_WORKFLOWS = 10
STRETCHES = 20  # of time, that the bootstrap draws from
_GOOD, _FAIR = 0.1, 0.25  # of the mean

Tell = Callable[[float], None]  # the share that is done


def others_of(served: Decided) -> list[Decided]:
    """The baselines, and the order of arrival alone, with the placement that served."""
    asked = [*BASELINES, Decided("fcfs", served.placement)]
    if served in asked:
        asked.insert(0, KAIROS)
    return [each for each in dict.fromkeys(asked) if each != served]


def measure_gain(
    directory: Path, since_at: int, served: Decided, others: Sequence[Decided], tell: Tell
) -> Gained:
    """Simulate the log under the served policy and others, and compare them.

    Raises:
        SetupError: The log is missing, or has too little in it.
        InvalidFile: A line of it is not a record.
    """
    log = RecentLog(directory, since_at)
    instances = of_one_model(log)
    whole = {
        key: rows
        for key, rows in log.whole_workflows().items()
        if all(row.instance_id in instances for row in rows)
    }
    if len(whole) < FEWEST_WORKFLOWS:
        raise SetupError(
            f"{len(whole)} workflows began and ended in this time, with all calls answered, and it "
            f"takes {FEWEST_WORKFLOWS}: ask again later, or of a longer time"
        )
    answered = [row for row in log.rows if has_length(row) and row.instance_id in instances]
    longest = max((r.prompt_tokens or 0) + (r.completion_tokens or 0) for r in answered)
    engines = logged_engines(instances, answered, longest)
    question = Counterfactual(log, whole, engines)
    runs = []
    for number, decided in enumerate([served, *others]):
        runs.append(question.run(decided, _part_of(tell, number, 1 + len(others))))
    return _told(log, question, engines, [served, *others], runs, answered)


def _part_of(tell: Tell, number: int, of: int) -> Tell:
    return lambda share: tell((number + share) / of)


def _told(
    log: RecentLog,
    question: Counterfactual,
    engines: LoggedEngines,
    decided: Sequence[Decided],
    runs: Sequence[Sequence[float]],
    answered: Sequence[CallRow],
) -> Gained:
    # Those that failed under some policy have no time that could be compared.
    well = [n for n in range(len(question.keys)) if not any(isnan(run[n]) for run in runs)]
    if len(well) < FEWEST_WORKFLOWS:
        raise SetupError("in the simulation most workflows fail, so it says nothing of these")
    ran, *others = ([run[n] for n in well] for run in runs)
    actual = [question.actual_us[n] / SECOND for n in well]
    mean_off = fmean(ran) / fmean(actual) - 1
    by_workflow = _by_workflow(question, well, actual, ran, others)
    simulated = [row for n in well for row in question.rows[question.keys[n]]]
    return Gained(
        begins_at=log.begins_at,
        ends_at=log.ends_at,
        workflows=len(well),
        calls=len(simulated),
        share=_tokens(simulated) / _tokens(answered),
        instances=len(engines.profiles),
        actual_mean_s=fmean(actual),
        actual_p95_s=percentile(sorted(actual), 95),
        ran=_predicted(decided[0], ran, None, mean_off),
        trust=_trust(mean_off),
        mean_off=mean_off,
        p95_off=percentile(sorted(ran), 95) / percentile(sorted(actual), 95) - 1,
        engines_off=engines.off,
        others=[
            _predicted(each, times, ran, mean_off)
            for each, times in zip(decided[1:], others, strict=True)
        ],
        by_workflow=by_workflow,
    )


def _tokens(rows: Sequence[CallRow]) -> int:
    return sum((row.prompt_tokens or 0) + (row.completion_tokens or 0) for row in rows)


def _trust(mean_off: float) -> Trust:
    if abs(mean_off) <= _GOOD:
        return "good"
    return "fair" if abs(mean_off) <= _FAIR else "poor"


def _predicted(
    decided: Decided, times: Sequence[float], ran: Sequence[float] | None, mean_off: float
) -> Predicted:
    """Return the result of a policy.

    `ran` has the times of the policy that served, or None for itself.
    """
    found = None if ran is None else ratio_interval(_stretches(times), _stretches(ran))
    return Predicted(
        policy=decided.policy,
        placement=decided.placement,
        mean_s=fmean(times),
        p95_s=percentile(sorted(times), 95),
        times=found,
        verdict=_verdict(found, mean_off),
    )


def _verdict(found: Interval | None, mean_off: float) -> Verdict:
    """Return whether the other policy would have been quicker."""
    if found is None or _trust(mean_off) == "poor":
        return "not known"
    if found.low <= 1 <= found.high or abs(found.mean - 1) <= abs(mean_off):
        return "no difference"
    return "quicker" if found.mean < 1 else "slower"


def _stretches(times: Sequence[float]) -> list[float]:
    """Means of equally many workflows, in the order in which they began."""
    count = min(STRETCHES, len(times) // 2)
    size = len(times) // count
    return [fmean(times[n * size : (n + 1) * size]) for n in range(count)]


def _by_workflow(
    question: Counterfactual,
    well: Sequence[int],
    actual: Sequence[float],
    ran: Sequence[float],
    others: Sequence[Sequence[float]],
) -> list[WorkflowTimes]:
    found = [
        WorkflowTimes(
            tenant=question.keys[n][0],
            id=question.keys[n][1],
            app=question.rows[question.keys[n]][0].request.app,
            actual_s=round(actual[place], 3),
            ran_s=round(ran[place], 3),
            others_s=[round(times[place], 3) for times in others],
        )
        for place, n in enumerate(well)
    ]
    if others:
        found.sort(key=lambda each: each.ran_s - each.others_s[0])
    return found
