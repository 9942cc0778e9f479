"""Who used how much, by logs whose sums can be checked by hand.

The instance has four sequences, and prompts are found in its cache unless a test says otherwise: a
second there is a quarter of a second of service.
"""

import csv
import io
import sys
from datetime import UTC, datetime

import pytest
from pyarrow import parquet
from rich.console import Console

from kairos.cli import usage_parquet
from kairos.core import (
    SECOND,
    Arrived,
    Bounced,
    CallTracker,
    Cancelled,
    Dispatch,
    Failed,
    Finished,
    FirstToken,
    InstanceJoined,
    InstanceLeft,
    InvalidFile,
    Progressed,
    Record,
    Refuse,
    SetupError,
)
from kairos.core.dispatcher.speed import Speed, StepPace
from kairos.observe import FactLog, read_prices, report_usage, write_csv
from kairos.observe import usage as module
from kairos.observe.usage import MAX_ROWS, ModelPrices, Prices, UsageMeter, usage_table
from tests.support.cli.command import invoke
from tests.support.simulate import build
from tests.unit.observe.test_explain import log  # noqa: F401  (a fixture)

DAY = 20_000 * 86_400  # in s: a day of 2024, so that instants are shown as such
BEGIN = Record(0, InstanceJoined(build.instance("i")))


def told(at, event, *commands):
    return Record(at * SECOND, event, commands)


def goes(name, instance="i", cached=10):
    return Dispatch(name, instance, cached_tokens=cached)


def arrives(at, name, *commands, prompt=10, **said):
    said = {"app": "chat", "workflow_id": "w"} | said
    return told(at, Arrived(build.request(name, at=at * SECOND, prompt=prompt, **said)), *commands)


def ends(at, name, *commands, prompt=10, answer=6, cached=10):
    return told(at, Finished(name, prompt, answer, cached), *commands)


def call(name, begins, took, **said):
    return arrives(begins, name, goes(name), **said), ends(begins + took, name)


def one(report):
    [(_, figures)] = report.groups
    assert figures == report.total
    return figures


def test_a_call_counts_with_its_tokens_its_wait_and_its_share_of_the_instance(log):  # noqa: F811
    figures = one(
        report_usage(
            log(
                BEGIN,
                arrives(1, "a"),
                told(4, InstanceJoined(build.instance("j")), goes("a")),
                ends(12, "a", prompt=20, answer=6, cached=20),
            ),
            ("tenant", "app"),
        )
    )

    assert (figures.calls, figures.workflows) == (1, 1)
    assert (figures.failed, figures.refused, figures.cancelled) == (0, 0, 0)
    assert (figures.prompt_tokens, figures.cached_tokens, figures.answer_tokens) == (20, 20, 6)
    assert (figures.queue_s, figures.service_s) == (3.0, 2.0)
    assert figures.kv_token_s == (20 + 3) * 8


def test_what_a_call_holds_of_the_memory_counts_where_that_is_more(log):  # noqa: F811
    begin = Record(0, InstanceJoined(build.instance("i", kv=100)))
    arrived = arrives(1, "a", goes("a", cached=40), prompt=40)
    ended = ends(5, "a", prompt=40, answer=20, cached=40)
    figures = one(report_usage(log(begin, arrived, ended), ("app",)))

    assert figures.service_s == 4 * (40 + 20 / 2) / 100


def test_a_prompt_that_is_computed_takes_the_whole_instance(log):  # noqa: F811
    figures = one(
        report_usage(
            log(BEGIN, arrives(1, "a", goes("a")), ends(9, "a", prompt=1000, cached=0)), ()
        )
    )

    speed = Speed(StepPace())
    computing_s = (speed.prefill_us(1000) - speed.token_us(1)) / SECOND
    assert figures.service_s == pytest.approx(computing_s + (8 - computing_s) / 4)


def test_calls_that_fail_or_are_refused_or_cancelled_are_told_apart(log):  # noqa: F811
    report = report_usage(
        log(
            BEGIN,
            arrives(0, "failed", goes("failed")),
            told(4, Failed("failed", "engine", wasted_tokens=9)),
            arrives(4, "refused", Refuse("refused", "m", "too_late")),
            arrives(4, "waits"),
            told(10, Cancelled("waits")),
            arrives(10, "runs", goes("runs")),
            arrives(10, "begun", goes("begun")),
            told(12, FirstToken("begun")),
            told(13, Progressed({"begun": 7})),
            told(14, Cancelled("runs")),
            arrives(18, "gone", Refuse("begun", "m", "cancelled")),
        ),
        ("app",),
    )
    figures = one(report)

    assert (figures.calls, figures.failed, figures.refused, figures.cancelled) == (5, 1, 1, 3)
    assert figures.queue_s == 6.0
    assert figures.service_s == (4 + 4 + 8) / 4
    # Only whose answer had begun has had one: its prompt, and as much as was told of the answer.
    assert (figures.prompt_tokens, figures.cached_tokens, figures.answer_tokens) == (10, 0, 7)
    assert figures.kv_token_s == 10 * 4 + 10 * 4 + (10 + 3.5) * 8
    assert report.under_way == 1


def test_the_time_of_a_try_that_was_returned_is_service_and_no_wait(log):  # noqa: F811
    figures = one(
        report_usage(
            log(
                BEGIN,
                Record(0, InstanceJoined(build.instance("j", seqs=2))),
                arrives(0, "a"),
                told(1, InstanceJoined(build.instance("j", seqs=2)), goes("a")),
                told(5, Bounced("a", "upstream_failed")),
                told(7, FirstToken("nobody"), goes("a", "j")),
                ends(17, "a"),
            ),
            ("app",),
        )
    )

    assert (figures.calls, figures.failed, figures.answer_tokens) == (1, 0, 6)
    assert figures.queue_s == 1 + 2
    assert figures.service_s == 4 / 4 + 10 / 2
    assert figures.kv_token_s == 10 * 4 + (10 + 3) * 10


def test_a_call_that_gives_up_after_a_try_had_that_try(log):  # noqa: F811
    figures = one(
        report_usage(
            log(
                BEGIN,
                arrives(0, "a", goes("a")),
                told(1, FirstToken("a")),
                told(8, Bounced("a", "upstream_failed")),
                told(10, Cancelled("a"), Refuse("a", "m", "no_other")),
            ),
            ("app",),
        )
    )

    assert (figures.calls, figures.cancelled, figures.failed) == (1, 1, 0)
    assert (figures.queue_s, figures.service_s) == (2.0, 2.0)
    assert (figures.prompt_tokens, figures.answer_tokens) == (0, 0)  # the answer began no more


def test_a_call_that_goes_again_without_having_come_back_was_lost_with_a_process(log):  # noqa: F811
    lost = arrives(0, "a", goes("a")), arrives(1000, "a", goes("a")), ends(1004, "a")
    figures = one(report_usage(log(BEGIN, *lost), ("app",)))

    assert (figures.calls, figures.queue_s) == (1, 0.0)
    assert figures.service_s == 0 + 4 / 4


def test_engines_that_tell_nothing_leave_what_is_known_without_them(log):  # noqa: F811
    silent = told(5, Finished("a"))
    figures = one(
        report_usage(
            log(BEGIN, arrives(1, "a", goes("a")), told(3, Progressed({"a": 4})), silent), ("app",)
        )
    )

    assert (figures.prompt_tokens, figures.cached_tokens, figures.answer_tokens) == (10, 0, 4)
    assert figures.service_s == 1.0


def test_a_call_that_runs_as_its_instance_leaves_is_measured_to_its_end(log):  # noqa: F811
    left = told(2, InstanceLeft("i"))
    report = report_usage(log(BEGIN, arrives(1, "a", goes("a")), left, ends(9, "a")), ("app",))

    assert (one(report).service_s, report.unmeasured) == (2.0, 0)


def test_a_log_that_begins_in_the_middle_tells_what_it_can(log):  # noqa: F811
    report = report_usage(
        log(
            ends(50, "before", goes("earlier")),
            told(51, FirstToken("before")),
            told(51, Progressed({"before": 3})),
            told(52, Bounced("earlier", "stalled")),
            told(52, InstanceLeft("nobody")),
            arrives(52, "a", goes("a"), Refuse("earlier", "m", "no_other")),
            ends(56, "a"),
        ),
        ("app",),
        since_at=0,
    )

    figures = one(report)
    assert (figures.calls, figures.prompt_tokens, figures.service_s) == (1, 10, 0.0)
    assert figures.kv_token_s == 13 * 4
    assert (report.unmeasured, report.is_cut, report.log_begins_at) == (1, True, 50 * SECOND)
    out = text(report)
    assert "calls on instances whose limits are not in the log: 1" in out
    assert "the log begins at 50.000 s: earlier calls are missing" in out


def test_where_the_file_is_gone_in_which_instances_joined_their_calls_are_measured(tmp_path):
    kept = FactLog(tmp_path, file_bytes=1, max_files=2)
    for record in (BEGIN, *FOUR):
        kept(record)
        kept.flush()
    kept.close()
    report = report_usage(tmp_path, ("app",))

    assert (report.total.calls, report.total.service_s, report.unmeasured) == (1, 2.5, 0)
    (tmp_path / "instances.json").write_text("damaged")
    assert report_usage(tmp_path, ("app",)).unmeasured == 1


FOUR = [fact for n in range(4) for fact in call(f"c{n}", 10 * n, 10, workflow_id=f"w{n}")]


def test_a_period_that_ends_before_it_begins_is_refused(log):  # noqa: F811
    directory = log(BEGIN)
    with pytest.raises(SetupError, match="--since must be before --until"):
        report_usage(directory, ("app",), 5, 5)
    assert not report_usage(directory, ("app",), 0, 5).is_cut
    assert report_usage(directory, ("app",), -1, 5).is_cut


@pytest.mark.interpreted
def test_service_is_what_the_balancer_charged(monkeypatch):
    """The charges of a balancer with all that it has learnt, of calls whose instance stayed."""
    records, _ = build.simulate(3)
    fresh, charged, left = build.balancer(placement="least-kv"), {}, set()
    ledger = fresh.ledger
    book, release = ledger.book, ledger.release_booking

    def booked(request, instance_id, at):
        cost_us = book(request, instance_id, at)
        charged[request.id] = charged.get(request.id, 0) + cost_us
        return cost_us

    def released(request_id, at, finished=None):
        booking = ledger.booking(request_id)
        if booking is not None and booking.instance_id not in ledger.instances:
            left.add(request_id)
        more_us = release(request_id, at, finished)
        if booking is not None:
            charged[request_id] += more_us
        return more_us

    monkeypatch.setattr(ledger, "book", booked)
    monkeypatch.setattr(ledger, "release_booking", released)
    meter, used = UsageMeter(), {}
    for record in records:
        fresh.replay(record)
        used |= {use.request.id: use for use in meter.observe(record)}

    compared = [each for each in charged if each in used and each not in left]
    assert len(compared) > 150
    for each in compared:
        assert used[each].service_us == pytest.approx(charged[each], rel=1e-9, abs=1e-3)


def test_outcomes_and_waits_are_those_of_the_call_tracker():
    records, _ = build.simulate(5)
    meter, tracker = UsageMeter(), CallTracker()
    for record in records:
        uses, rows = meter.observe(record), tracker.observe(record)
        assert [(u.request.id, u.outcome, u.queued_us, u.ended_at) for u in uses] == [
            (r.request.id, r.outcome, r.queued_us, r.ended_at) for r in rows
        ]
    assert meter.under_way == 0


def test_too_many_groups_are_refused_with_what_to_do(log, monkeypatch):  # noqa: F811
    directory = log(BEGIN, *FOUR)
    monkeypatch.setattr(module, "MAX_GROUPS", 3)
    with pytest.raises(SetupError, match=r"more than 3 groups by workflow: group by less"):
        report_usage(directory, ("workflow",))
    assert report_usage(directory, ("app",)).total.calls == 4
    monkeypatch.setattr(module, "MAX_WORKFLOWS", 7)
    with pytest.raises(SetupError, match="too many workflows: name a shorter time"):
        report_usage(directory, ("app",))


def test_a_log_that_is_none_is_said(tmp_path, log):  # noqa: F811
    with pytest.raises(SetupError, match=r"there is no directory .*nowhere"):
        report_usage(tmp_path / "nowhere", ("app",))
    directory = log()
    with pytest.raises(SetupError, match=r"there are no facts in .*: name the directory of a log"):
        report_usage(directory, ("app",))
    (file,) = directory.iterdir()
    file.write_bytes(b"garbage\n")
    with pytest.raises(InvalidFile, match=r"facts-000001\.jsonl:1: invalid record"):
        report_usage(directory, ("app",))


def test_a_log_that_may_not_be_read_is_said(log, monkeypatch):  # noqa: F811
    def forbidden(directory):
        raise PermissionError(13, "Permission denied")
        yield

    monkeypatch.setattr(module, "read_facts", forbidden)
    with pytest.raises(SetupError, match="cannot be read: Permission denied"):
        report_usage(log(BEGIN), ("app",))


def text(report, currency=None):
    out = io.StringIO()
    Console(file=out, width=200).print(usage_table(report, currency))
    return out.getvalue()


def cells(line):
    return [each.strip() for each in line.strip("│").split("│")]


def test_the_table_has_a_row_for_each_group_and_one_for_all(log):  # noqa: F811
    report = report_usage(
        log(
            BEGIN,
            *call("a", DAY, 4, tenant="acme"),
            *call("b", DAY + 10, 4000, tenant="[bold]", app=None, workflow_id="v"),
            arrives(DAY + 5000, "open"),
        ),
        ("tenant", "app"),
        since_at=DAY * SECOND,
    )
    lines = text(report).splitlines()

    ends_at = datetime.fromtimestamp(DAY + 5000).strftime("%Y-%m-%d %H:%M:%S")
    assert lines[0].rstrip().endswith(f" to {ends_at}")
    assert ["|".join(cells(line)) for line in lines if line.startswith("│")] == [
        "[bold]|-|1|0|0|0|1|10|10|6|0.0|1,000.0|52,000",
        "acme|chat|1|0|0|0|1|10|10|6|0.0|1.0|52",
        "all||2|0|0|0|2|20|20|12|0.0|1,001.0|52,052",
    ]
    assert lines[-1] == "calls under way at the end, not counted: 1"


def test_in_a_narrow_terminal_no_figure_is_cut_short(log):  # noqa: F811
    report = report_usage(log(BEGIN, *call("a", 0, 4_000_000)), ("app",))
    out = io.StringIO()
    Console(file=out, width=80).print(usage_table(report, None))
    assert "…" not in out.getvalue().split("┡")[1]


def test_of_very_many_groups_the_first_have_rows(log):  # noqa: F811
    facts = [f for n in range(MAX_ROWS + 2) for f in call(f"c{n}", n, 1, workflow_id=f"w{n}")]
    report = report_usage(log(BEGIN, *facts), ("workflow",))

    assert "2 more groups have no row here: --csv FILE has all" in text(report)
    assert len(report.groups) == report.total.workflows == MAX_ROWS + 2


def read_csv(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_a_file_has_every_group_and_names_that_run_nothing(log, tmp_path):  # noqa: F811
    names = ("=1+2", "+1", "-1", "@x", "\tx", "a=b", 'a"b,c')
    facts = [f for n, name in enumerate(names) for f in call(f"c{n}", n, 1, model=name)]
    report = report_usage(log(BEGIN, *facts, *call("d", 9, 2, model=None)), ("model", "app"))
    write_csv(tmp_path / "out.csv", report, has_cost=False)
    heading, *rows = read_csv(tmp_path / "out.csv")

    assert heading == [
        "model", "app", "calls", "failed", "refused", "cancelled", "workflows", "prompt_tokens",
        "cached_tokens", "answer_tokens", "queue_s", "service_s", "kv_token_s",
    ]  # fmt: skip
    assert "|".join(rows[0]) == "|chat|1|0|0|0|1|10|10|6|0.000|0.500|26.000"
    assert {row[0] for row in rows[1:]} == {"'=1+2", "'+1", "'-1", "'@x", "'\tx", "a=b", 'a"b,c'}


def test_a_file_that_cannot_be_written_is_said(log, tmp_path):  # noqa: F811
    report = report_usage(log(BEGIN, *FOUR), ("app",))
    with pytest.raises(SetupError, match=r"cannot write .*no/out\.csv"):
        write_csv(tmp_path / "no" / "out.csv", report, has_cost=False)


def test_a_parquet_file_has_every_group_with_types_and_the_period(
    log,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    monkeypatch.setattr(usage_parquet, "_AT_ONCE", 2)
    facts = [f for n in range(5) for f in call(f"c{n}", n, 1, model=f"m{n}", key="ci")]
    directory = log(BEGIN, *facts, *call("d", 9, 2, model=None))
    report = report_usage(directory, ("model", "key"), 0, 60 * SECOND)
    usage_parquet.write_parquet(tmp_path / "out.parquet", report, None)
    table = parquet.read_table(tmp_path / "out.parquet")

    first = table.to_pylist()[0]
    assert (first["model"], first["key"], first["calls"], first["service_s"]) == (
        None,
        None,
        1,
        0.5,
    )
    assert first["period_ends"] == datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
    assert "cost" not in first
    assert [str(table.schema.field(name).type) for name in ("model", "calls", "queue_s")] == [
        "string", "int64", "double",
    ]  # fmt: skip
    assert table.column("model").to_pylist()[1:] == [f"m{n}" for n in range(5)]
    assert set(table.column("key").to_pylist()[1:]) == {"ci"}

    usage_parquet.write_parquet(tmp_path / "priced.parquet", report, "EUR")
    assert parquet.read_table(tmp_path / "priced.parquet").to_pylist()[0]["currency"] == "EUR"


def test_without_pyarrow_it_is_said_how_to_get_it(log, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    options = ["usage", str(log(BEGIN, *FOUR)), "--parquet", str(tmp_path / "out.parquet")]
    ended = invoke(*options)
    assert isinstance(ended.exception, SetupError)
    assert "pip install pyarrow" in str(ended.exception)
    assert not (tmp_path / "out.parquet").exists()


PRICES = """
currency = "EUR"
[default]
instance_hour = 3.6
[models."org/large"]
prompt = 2.0
cached = 0.5
answer = 10.0
[models.small]
prompt = 1.0
instance_hour = 7.2
"""


def priced(tmp_path, content):
    path = tmp_path / "prices.toml"
    path.write_text(content)
    return read_prices(path)


def test_prices_turn_tokens_and_service_into_money(log, tmp_path):  # noqa: F811
    def called(at, name, model):
        prompt = {"prompt": 1_000_000, "model": model}
        end = ends(at + 4, name, prompt=1_000_000, answer=100_000, cached=1_000_000)
        return arrives(at, name, goes(name, cached=1_000_000), **prompt), end

    arrived = arrives(0, "a", goes("a"), model="org/large")
    ended = ends(4, "a", prompt=1_000_000, answer=100_000, cached=400_000)
    prices = priced(tmp_path, PRICES)
    report = report_usage(
        log(
            BEGIN,
            arrived,
            ended,
            *called(10, "b", "small"),
            *called(20, "c", "other"),
            *called(30, "d", None),
        ),
        ("model",),
        prices=prices,
    )

    found = {group[0]: figures.cost for group, figures in report.groups}
    assert found["org/large"] == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.1 * 10)
    assert found["small"] == pytest.approx(1 + 7.2 / 3600)  # cached tokens cost what others do
    assert found["other"] == found[None] == pytest.approx(3.6 / 3600)
    assert report.total.cost == pytest.approx(sum(found.values()))
    assert "cost, EUR" in text(report, "EUR")
    of_all = next(line for line in text(report, "EUR").splitlines() if line.startswith("│ all"))
    assert cells(of_all)[-1] == "3.40"
    write_csv(tmp_path / "out.csv", report, has_cost=True)
    costs = {row[0]: row[-1] for row in read_csv(tmp_path / "out.csv")}
    assert (costs["model"], costs["small"], costs[""]) == ("cost", "1.002000", "0.001000")


def test_a_model_without_a_price_is_named_once_it_costs_something(log):  # noqa: F811
    refused = arrives(0, "r", Refuse("r", "m", "too_late"))
    directory = log(BEGIN, refused, *call("a", 1, 4))

    prices = Prices(models={"other": ModelPrices(prompt=1.0)})
    assert report_usage(directory, ("app",), None, SECOND, prices).total.cost == 0.0
    with pytest.raises(SetupError, match=r"there is no price for the model 'm': add it, or"):
        report_usage(directory, ("app",), prices=prices)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "there is no price: give a table"),
        ('currency = "EUR"', "there is no price"),
        ("[default]", "there is no price"),
        ("[models.m]", r"models\.m has no price; known are: prompt, cached, answer, instance_hour"),
        ("[default]\nprompt = -1.0", r"default\.prompt must be 0 or more, and finite"),
        ("[models.m]\nanswer = nan", r"models\.m\.answer must be 0 or more, and finite"),
        ("[models.m]\ninstance_hour = inf", r"models\.m\.instance_hour must be"),
        ("[default]\npromt = 1.0", "unknown field `promt`.*known are: prompt, cached, answer"),
        ("[models.m]\npromt = 1.0", "unknown field `promt`.*known are: prompt, cached, answer"),
        ("[model.m]\nprompt = 1.0", "unknown field `model`.*known are: currency, default, models"),
        ('[default]\nprompt = "1"', "Expected `float"),
        ("[default", "not TOML"),
    ],
)
def test_a_file_of_prices_that_is_wrong_says_where(tmp_path, content, message):
    with pytest.raises(InvalidFile, match=rf"prices\.toml: .*{message}"):
        priced(tmp_path, content)


def test_a_file_of_prices_that_is_missing_is_said(tmp_path):
    with pytest.raises(InvalidFile, match="No such file"):
        read_prices(tmp_path / "prices.toml")


def run(*words):
    return invoke("usage", *map(str, words), env={"COLUMNS": "200"})


def test_the_command_reads_shows_and_writes(log, tmp_path):  # noqa: F811
    directory = log(BEGIN, *FOUR)
    (tmp_path / "prices.toml").write_text(PRICES)
    more = "--prices", tmp_path / "prices.toml", "--csv", tmp_path / "out.csv"
    period = "--since", "1970-01-01T00:00:15Z", "--until", "1970-01-01T00:00:40Z"
    done = run(directory, *period, "--by", "model", "--by", "tenant,app", *more)

    assert done.exit_code == 0, done.output
    assert "Calls that ended from 15.000 s to 40.000 s" in done.output
    assert "cost, EUR" in done.output
    assert [row[:4] for row in read_csv(tmp_path / "out.csv")] == [
        ["model", "tenant", "app", "calls"],
        ["m", "default", "chat", "2"],
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--since", "soon"), "'soon' is not a time to begin at"),
        (("--until", "soon"), "'soon' is not a time to end at"),
        (("--by", "team"), "there is no 'team'"),
        (("--since", "1h", "--until", "2h"), "--since must be before --until"),
    ],
)
def test_what_the_command_is_told_wrongly_is_said(log, words, message):  # noqa: F811
    done = run(log(BEGIN), *words)
    assert isinstance(done.exception, SetupError)
    assert message in str(done.exception)
