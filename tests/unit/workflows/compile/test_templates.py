import pytest
from jinja2.exceptions import TemplateError

from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.compile.template_language import TemplateWork, _size
from kairos.workflows.compile.templates import BadTemplate, Expression, Opaque, Template


def test_slots_are_filled_as_jinja_would_fill_them():
    value = {"a": "é", "b": None, "c": True, "d": [1, {"x": None}], "items": "i"}
    slots = "{{ v.a }}\n{{ v['b'] }} {{ v.c }}{{ v.d[1] }} {{ v.items }}\n"
    opaque = slots + "{% if true %}{% endif %}"
    assert any(isinstance(each, Opaque) for each in Template(opaque).segments)
    assert Template(opaque).render({"v": value}) == Template(slots).render({"v": value}) + "\n"


@pytest.mark.parametrize(
    ("source", "values", "text"),
    [
        ("{{ v | join(', ') }}", {"v": ["a", 1, None, True]}, "a, 1, , true"),
        ("{{ v | join(', ', 'n') }}", {"v": [{"n": 1}, {"n": "b"}]}, "1, b"),
        ("{{ v | tojson }}", {"v": {"a": "<é>"}}, '{"a":"<é>"}'),
        ("{{ v.x | default('none') }}", {"v": {}}, "none"),
        ("{{ v.x | default('none') }}", {"v": {"x": None}}, "none"),
        ("{{ v[:3] }}", {"v": "abcdef"}, "abc"),
        ("{{ v | lines | length }}", {"v": "a\n\nb"}, "2"),
        ("{{ v | first }}{{ v | last }}", {"v": [1, 2, 3]}, "13"),
        ("{{ v | trim | upper }}", {"v": " a "}, "A"),
        ("{% for k, x in v | items %}{{ k }}={{ x }};{% endfor %}", {"v": {"a": 1}}, "a=1;"),
        ("{% for x in v %}{{ loop.index }}{% if not loop.last %}, {% endif %}{% endfor %}",
         {"v": ["a", "b"]}, "1, 2"),
        ("{% if v is none %}no{% else %}yes{% endif %}", {"v": None}, "no"),
        ("{% raw %}{{ v }}{% endraw %}", {}, "{{ v }}"),
    ],
)  # fmt: skip
def test_what_templates_can_do(source, values, text):
    assert Template(source).render(values) == text


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ v.x() }}", "functions and methods cannot be called"),
        ("{% set v = 1 %}", "`set` is not known"),
        ("{{ v * 9 }}", "`*` is not known"),
        ("{{ v ~ v }}", "one after the other"),
        ("{{ v | replace('a', 'b') }}", "no filter 'replace'; there are default"),
        ("{{ v is divisibleby(3) }}", "no test 'divisibleby'"),
        ("{% include 'x' %}", "`include` is not known"),
        ("{% for x in v recursive %}{% endfor %}", "recursive"),
        ("{{ v", "unexpected end of template"),
        ("{{ " + "(" * 3000, "nested too deeply"),
        ("{{ " + "not " * 80 + "v }}", "nested more than 60 deep"),
        ("{{ " + "9" * 5000 + " }}", "a number beyond any use"),
        ("x" * 300_000, "longer than"),
    ],
)
def test_what_is_not_of_the_language_is_refused(source, said):
    with pytest.raises(BadTemplate) as raised:
        Template(source)
    assert said in str(raised.value)


def test_an_error_in_a_template_has_its_line():
    with pytest.raises(BadTemplate) as raised:
        Template("one\ntwo {{ v | nothing }}")
    assert raised.value.line == 2


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("{{ v.__class__ }}", "text"),
        ("{{ v['__class__'] }}", {"a": 1}),
        ("{{ v.keys }}", {"a": 1}),
        ("{{ v.append }}", [1]),
        ("{% for x in v.__class__.__mro__ %}{% endfor %}", "text"),
        ("{{ v.a.b }}", {"a": None}),
        ("{{ v[7] }}", [1]),
        ("{% for x in v %}{% endfor %}", 3),
        ("{{ v + 1 }}", "a"),
        ("{% if v.missing %}{% endif %}", {}),
        ("{{ range }}", 1),
        ("{{ lipsum }}", 1),
    ],
)
def test_only_parts_of_json_can_be_had(source, value):
    with pytest.raises(OperatorFailed):
        Template(source).render({"v": value})


def test_a_template_takes_no_more_time_and_room_than_its_bounds():
    around = "{% for a in v %}{% for b in v %}{% for c in v %}"
    loops = Template(around + "{% endfor %}" * 3)
    with pytest.raises(OperatorFailed, match="more than 100000 steps"):
        loops.render({"v": [0] * 1_000})
    wide = Template("{% for a in v %}{{ t }}{% endfor %}")
    with pytest.raises(OperatorFailed, match="longer than"):
        wide.render({"v": [0] * 1_000, "t": "x" * 100_000})
    with pytest.raises(OperatorFailed, match="longer than"):
        Template("{{ v | join(t) }}").render({"v": [0] * 1_000, "t": "x" * 100_000})
    with pytest.raises(OperatorFailed, match="longer than"):
        Template("{{ t }}" * 1_000).render({"t": "x" * 100_000})


@pytest.mark.parametrize(
    "within",
    [
        "{% if t | upper == 'A' %}a{% endif %}",
        "{% if 'ab' in t %}a{% endif %}",
        "{% if t == u %}a{% endif %}",
        "{% if t is eq u %}a{% endif %}",
        "{% if t[1:] %}a{% endif %}",
        "{% if t + u %}a{% endif %}",
        "{{ deep | tojson | length }}",
        "{% if a is even %}{% endif %}" * 2_000,
    ],
)
def test_what_goes_through_long_values_again_and_again_is_too_much(within, monkeypatch):
    monkeypatch.setattr("kairos.workflows.compile.template_language.MOST_WORK", 1_000_000)
    looped = Template("{% for a in v %}" + within + "{% endfor %}")
    values = {"t": "x" * 250_000, "u": "y" * 250_000, "deep": [[[1] * 1_000] * 50]}
    looped.render({"v": [1], **values})
    with pytest.raises(OperatorFailed, match="it computes too much"):
        looped.render({"v": [1] * 5_000, **values})


def test_several_templates_may_compute_together_what_one_may():
    looped, work = (
        Template("{% for a in v %}{% if t | upper %}{% endif %}{% endfor %}"),
        TemplateWork(),
    )
    values = {"v": [1] * 10, "t": "x" * 10_000_000}
    looped.render(values, work)
    with pytest.raises(OperatorFailed, match="it computes too much"):
        looped.render(values, work)


@pytest.mark.parametrize(
    ("source", "values", "value"),
    [
        ("a.b", {"a": {"b": [1]}}, [1]),
        ("a.b > 3 and 'x' in c", {"a": {"b": 5}, "c": "xyz"}, True),
        ("a | trim | lower", {"a": " Yes\n"}, "yes"),
        ("a | number + 1", {"a": " 4 "}, 5),
        ("[a, 1]", {"a": 2}, [2, 1]),
        ("(a, 1)", {"a": 2}, [2, 1]),
        ("'big' if a | length > 2 else 'small'", {"a": "abc"}, "big"),
    ],
)
def test_an_expression_has_a_value(source, values, value):
    assert Expression(source).value(values) == value


@pytest.mark.parametrize("source", ["", "a b", "a }} b", "x = 1", "a()", "{{ a }}", "a *"])
def test_what_is_no_expression_is_refused(source):
    with pytest.raises(BadTemplate):
        Expression(source)


def test_an_expression_without_a_value_fails_its_row():
    for source in ("a.c", "a.b + 1", "a.c | upper"):
        with pytest.raises(OperatorFailed, match="has no value"):
            Expression(source).value({"a": {"b": "x"}})


LONG, ITEMS = "x" * (1 << 20), list(range(100_000))


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("{{ v is even }}", {"v": "%2000000000d"}),
        ("{{ v is odd }}", {"v": "%(a)s"}),
        ("{{ '%2000000000d' is even }}", {}),
        ("{{ v is even }}", {"v": True}),
        ("{{ v is even }}", {"v": [2]}),
        ("{{ [" + "v," * 2_000 + "] }}", {"v": LONG}),
        ("{{ [" + "v," * 2_000 + "] }}", {"v": ITEMS}),
        ("{{ [" + "v," * 2_000 + "] | tojson }}", {"v": LONG}),
        ("{{ [[v,v,v],[v,v,v],[v,v,v]] }}", {"v": ITEMS * 20}),
        ("{{ [" + "v," * 2_000 + "] | join(v) }}", {"v": LONG}),
        ("{{ 1 in [" + "v," * 2_000 + "] }}", {"v": ITEMS * 10}),
    ],
)
def test_what_would_be_enormous_is_not_made(source, values):
    with pytest.raises(OperatorFailed):
        Template(source).render(values)


class Looked(list):
    """A list that counts how often it is gone through."""

    looks = 0

    def __iter__(self):
        self.looks += 1
        return super().__iter__()


def test_a_list_that_a_value_holds_many_times_is_gone_through_once():
    held, work = Looked([1, "a", [2]]), TemplateWork()
    work.go_through([[held] * 500, {"k": held}, held])
    assert held.looks == 1
    with pytest.raises(TemplateError):
        work.go_through([list(range(100_000))] * 200)
    assert _size([[held] * 500, held], 10_000) == 2 + 500 + 501 * 4


def test_an_expression_nested_too_deeply_is_refused():
    with pytest.raises(BadTemplate):
        Expression("+".join(["v"] * 50_000))
