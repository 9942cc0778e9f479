"""Tell an edited function from the same one by its digest."""

import asyncio
import importlib
import linecache
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import OrderedDict
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kairos.workflows.declare.python_file import load_functions
from kairos.workflows.declare.sources import digest_of

FILE = """
from functools import partial
import math
from kairos.flow import Functions
functions = Functions()
RATE = 3
NAMES = {"a": [1, 2]}
UNUSED = 1

class Price:
    base = 10

def unused(x):
    return x

def deepest(x):
    return x * RATE

def helper(x):
    return deepest(x) + Price.base

def around(by):
    def inner(x):
        return x + by
    return inner

@functions.pure
def f(x, more=1):
    inside = [helper(each) for each in [x]]  # a comment
    return math.floor(inside[0]) + more + len(NAMES)

closed = around(5)
functions.register(closed, purity="pure", name="g")
functions.register(partial(f, more=4), purity="pure", name="h")
functions.register(lambda x: x + 1, purity="pure", name="i")
"""

EDITS = {
    "its body": ("+ more +", "- more +", "fh"),
    "a default": ("more=1)", "more=2)", "fh"),
    "a function that it calls": ("+ Price.base", "- Price.base", "fh"),
    "a function that this calls": ("x * RATE", "x / RATE", "fh"),
    "a constant of that": ("RATE = 3", "RATE = 4", "fh"),
    "a list in a constant": ("[1, 2]", "[1, 3]", "fh"),
    "a class that it uses": ("base = 10", "base = 11", "fh"),
    "what it closes over": ("around(5)", "around(6)", "g"),
    "the body of a closure": ("x + by", "x - by", "g"),
    "what a partial has bound": ("more=4", "more=5", "h"),
    "a lambda": ("x + 1,", "x + 2,", "i"),
    "a comment": ("# a comment", "# another one", ""),
    "a blank line": ("def helper", "\n\ndef helper", ""),
    "what nobody uses": ("UNUSED = 1", "UNUSED = 2", ""),
    "a function that nobody calls": (
        "def unused(x):\n    return x",
        "def unused(x):\n    return 0",
        "",
    ),
}


def digests(path, text):
    path.write_text(text)
    functions = load_functions(path)
    return {name: digest_of(functions[name].function) for name in functions}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_changes_the_digest_of_what_it_concerns_alone(tmp_path, edit):
    old, new, concerned = EDITS[edit]
    assert FILE.count(old) == 1
    (tmp_path / "before").mkdir()
    before = digests(tmp_path / "before" / "fn.py", FILE)
    after = digests(tmp_path / "fn.py", FILE.replace(old, new))

    assert "".join(name for name in before if before[name] != after[name]) == concerned


def made(text, name="f", **known):
    """Return a function that no file has, as one of a notebook."""
    held = {"__name__": "of_a_notebook", **known}
    exec(text, held)
    return held[name]


def cyclic():
    value = [1]
    value += [value, {"again": value}]
    return value


def nested(times, inner):
    for _ in range(times):
        inner = [inner]
    return inner


class Odd:
    """A value that fails every question."""

    def __getattr__(self, name):
        raise RuntimeError(name)

    @property
    def __class__(self):
        raise RuntimeError("class")

    def __eq__(self, other):
        raise RuntimeError("eq")

    __hash__ = None
    __repr__ = __len__ = __iter__ = __bool__ = __eq__


class OddKind(type):
    def __getattribute__(cls, name):
        if name in ("__dict__", "__mro__"):
            return super().__getattribute__(name)
        raise RuntimeError(name)


class Forbidding(metaclass=OddKind):
    pass


class OddList(list):
    __iter__ = __len__ = __repr__ = Odd.__eq__


# A constant of the module, and another one with which the function is another one.
CONSTANTS = {
    "a number": (1, 2),
    "a number of its type": (1, True),
    "a whole number": (1, 1.0),
    "a large number": (10**5000, 10**5000 + 1),
    "half of a pair": ("\ud800", "\ud801"),
    "bytes": (b"a", bytearray(b"a")),
    "a list and a tuple": ([1], (1,)),
    "the order of a mapping": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "a set": ({"a", "b"}, {"a", "c"}),
    "what a set is within": ([{("a", 1)}], [{("a", 2)}]),
    "a decimal": (Decimal("1.0"), Decimal("1.00")),
    "an instant": (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
    "a pattern": (re.compile("a" * 300), re.compile("a" * 300 + "b")),
    "a pattern's flags": (re.compile("a"), re.compile("a", re.IGNORECASE)),
    "a path": (Path("a"), Path("b")),
    "an array": (np.arange(10_000), np.arange(10_000) * 2),
    "an array's shape": (np.zeros((2, 3)), np.zeros((3, 2))),
    "a member of a choice": (re.IGNORECASE, re.MULTILINE),
    "an ordered mapping": (OrderedDict(a=1), OrderedDict(a=2)),
    "a list of a class that lies": (OddList([1]), OddList([2])),
    "a bound method": ("a,b".split, ",b,a".split),
    "a function of elsewhere": (len, repr),
    "what holds itself": (cyclic(), [*cyclic(), 2]),
    "a long list": ([0] * 120_000, [0] * 120_001),
    "the length of a large set": (set(range(120_000)), set(range(120_001))),
    "a long text": ("a" * 17_000_000, "a" * 17_000_001),
    "what is deep": (nested(10, 1), nested(10, 2)),
    "how deep it is": (nested(20, 1), nested(21, 1)),
}


@pytest.mark.parametrize("case", CONSTANTS)
def test_a_constant_changes_the_digest(case):
    one, other = CONSTANTS[case]
    text = "def f(x):\n    return [x, KNOWN]"
    if case == "a bound method":
        assert digest_of(made(text, KNOWN=one)) == digest_of(made(text, KNOWN=other))
        return
    first = digest_of(made(text, KNOWN=one))
    assert first == digest_of(made(text, KNOWN=one))
    assert first != digest_of(made(text, KNOWN=other))


NO_DATA = {
    "odd": Odd(),
    "one of a class that forbids all": Forbidding(),
    "a class that forbids all": Forbidding,
    "deep": nested(50_000, 1),
    "object": object(),
    "class": Odd,
    "module": asyncio,
    "lock": threading.Lock(),
    "generator": (n for n in "ab"),
}


@pytest.mark.parametrize("case", NO_DATA)
def test_what_is_no_data_is_a_name_and_nothing_of_it_is_called(case):
    text = "def f(x):\n    return [x, KNOWN]"
    found = [digest_of(made(text, KNOWN=NO_DATA[case])) for _ in range(2)]
    assert found[0] == found[1]


# Code in which one word is replaced, and whether `f` is another function then.
CODE = {
    "a body": ("def f(x): return x + 1", "1", "2", True),
    "a name within": ("def f(x): y = x; return y", "y", "z", True),
    "an attribute": ("def f(x): return x.lower()", "lower", "upper", True),
    "a default by name": ("def f(x, *, y=1): return y", "1", "2", True),
    "what is caught": (
        "def f(x):\n try: return x[0]\n except KeyError: return 1",
        "KeyError",
        "IndexError",
        True,
    ),
    "a lambda beside another": ("f, g = (lambda x: x + 1), (lambda x: x + 2)", "2", "3", False),
    "this lambda": ("f, g = (lambda x: x + 1), (lambda x: x + 2)", "1", "3", True),
    "a function within": ("def f(x):\n def g(): return 1\n return g()", "1", "2", True),
    "a coroutine": ("async def f(x): return 1", "1", "2", True),
    "a method": ("class A:\n def g(self, x): return 1\nf = A().g", "1", "2", True),
    "what a method's object holds": (
        "class A:\n def __init__(self, n): self.n = n\n def g(self): return self.n\nf = A(1).g",
        "A(1)",
        "A(2)",
        True,
    ),
    "what it holds in slots": (
        "class A:\n __slots__ = ('n',)\n def __call__(self): return self.n\nf = A()\nf.n = 1",
        "= 1",
        "= 2",
        True,
    ),
    "a callable's call": ("class A:\n def __call__(self): return 1\nf = A()", "1", "2", True),
    "a class itself": ("class f:\n def __init__(self, x): self.x = 1", "1", "2", True),
    "a class above it": (
        "class A:\n def g(self): return 1\nclass B(A): pass\ndef f(x): return B().g()",
        "return 1",
        "return 2",
        True,
    ),
    "a static method": (
        "class A:\n @staticmethod\n def g(): return 1\ndef f(x): return A.g()",
        "1",
        "2",
        True,
    ),
    "a property": (
        "class A:\n @property\n def g(self): return 1\ndef f(x): return A().g",
        "1",
        "2",
        True,
    ),
    "a kept result": ("import functools\n@functools.cache\ndef f(x): return 1", "1", "2", True),
    "what is kept of a helper": (
        "import functools\n@functools.cache\ndef g(x): return 1\ndef f(x): return g(x)",
        "1",
        "2",
        True,
    ),
    "a wrapped one": (
        "import contextlib\n@contextlib.contextmanager\ndef f(x): yield 1",
        "1",
        "2",
        True,
    ),
    "a table of functions": (
        "def g(x): return 1\nALL = {'g': [g]}\ndef f(x): return ALL['g'][0](x)",
        "return 1",
        "return 2",
        True,
    ),
    "a partial of a partial": (
        "from functools import partial\ndef g(x, y): return x\nf = partial(partial(g, 1), 3)",
        "3",
        "4",
        True,
    ),
    "a wrapper without a name": (
        "def w(g):\n def inner(x): return g(x) + 1\n return inner\n@w\ndef f(x): return 5",
        "5",
        "6",
        True,
    ),
    "a data class's default": (
        """from dataclasses import dataclass
@dataclass
class A:
 n: int = 1
def f(x): return A().n""",
        "1",
        "2",
        True,
    ),
    "a comment": ("def f(x): return 1  # one", "one", "two", False),
    "an annotation": ("def f(x: int): return 1", "int", "str", False),
    "a line": ("def f(x):\n return 1", "return", "\n\n return", False),
    "another function": ("def f(x): return 1\ndef g(x): return 2", "2", "3", False),
}


@pytest.mark.parametrize("case", CODE)
def test_code_that_no_file_has_changes_the_digest_of_what_refers_to_it(case, monkeypatch):
    text, old, new, differs = CODE[case]
    module = ModuleType("of_a_notebook")
    monkeypatch.setitem(sys.modules, "of_a_notebook", module)
    found = []
    for each in (text, text, text.replace(old, new)):
        module.__dict__.clear()
        module.__dict__["__name__"] = "of_a_notebook"
        exec(each, module.__dict__)
        found.append(digest_of(module.__dict__["f"]))

    assert found[0] == found[1]
    assert (found[0] != found[2]) is differs


def test_a_function_that_a_library_wraps_is_another_one_once_it_was_edited(tmp_path):
    text = """
from wrapping import around
from kairos.flow import Functions
functions = Functions()
def helper():
    return 1
@functions.pure
@around
def f(x):
    return helper()
"""
    place = tmp_path / "site-packages"
    place.mkdir()
    (place / "wrapping.py").write_text(
        "import functools, time\n"
        "def around(g):\n"
        "    began = [time.time]\n"
        "    @functools.wraps(g)\n"
        "    def inner(*args, **named): return g(*args, **named)\n"
        "    return inner\n"
    )
    sys.path.insert(0, str(place))
    try:
        first = digests(tmp_path / "fn.py", text)
        assert first == digests(tmp_path / "fn.py", text)
        assert first != digests(tmp_path / "fn.py", text.replace("return 1", "return 2"))
        assert first != digests(
            tmp_path / "fn.py", text.replace("return helper()", "return -helper()")
        )
    finally:
        sys.path.remove(str(place))
        sys.modules.pop("wrapping", None)


NEAR = {
    "a function of its own name": ("from near import rate\n", "rate()"),
    "a function of a module": ("import near\n", "near.rate()"),
    "a function of a package": ("import inside.near\n", "inside.near.rate()"),
    "a constant": ("from near import RATE\n", "RATE"),
    "a constant of a module": ("import near as far\n", "far.RATE"),
    "a class": ("from near import Rate\n", "Rate().of()"),
    "an object": ("from near import one\n", "one.of()"),
    "what a function near it calls": ("from near import twice\n", "twice()"),
}
RATES = """
RATE = 3
def rate(): return 3
def twice(): return 2 * rate()
class Rate:
    def of(self): return 3
one = Rate()
"""


@pytest.mark.parametrize("case", NEAR)
def test_a_module_in_the_folder_is_followed(tmp_path, monkeypatch, case):
    taken, used = NEAR[case]
    text = f"from kairos.flow import Functions\n{taken}functions = Functions()\n"
    text += f"@functions.pure\ndef f(x):\n    return x + {used}\n"
    (tmp_path / "inside").mkdir()
    found = []
    for near in (RATES, RATES + "OTHER = 1\n", RATES.replace("3", "4")):
        for name in ("near.py", "inside/near.py"):
            (tmp_path / name).write_text(near)
        for name in ("near", "inside", "inside.near"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        for cache in tmp_path.rglob("__pycache__"):
            shutil.rmtree(cache)
        found.append(digests(tmp_path / "fn.py", text))

    assert found[0] == found[1]
    assert found[0] != found[2]


def test_a_file_that_is_edited_after_it_was_loaded_changes_nothing(tmp_path):
    path = tmp_path / "fn.py"
    path.write_text(FILE)
    functions = load_functions(path)
    before = digest_of(functions["f"].function)
    path.write_text(FILE.replace("+ more +", "- more +"))
    linecache.checkcache()

    assert digest_of(functions["f"].function) == before


def test_a_file_that_is_edited_at_once_to_as_many_bytes_is_read_again(tmp_path):
    texts = [FILE, FILE.replace("+ more +", "- more +")]
    first, second = (digests(tmp_path / "fn.py", text) for text in texts)
    assert first["f"] != second["f"]


def test_a_digest_is_the_same_in_another_process(tmp_path):
    text = FILE.replace(
        'NAMES = {"a": [1, 2]}', "NAMES = {'a', 'b', 'c', ('d', 1), frozenset('ef')}"
    )
    here = digests(tmp_path / "fn.py", text)
    script = (
        "import sys; from pathlib import Path\n"
        "from kairos.workflows.declare.python_file import load_functions\n"
        "from kairos.workflows.declare.sources import digest_of\n"
        "fs = load_functions(Path(sys.argv[1]))\n"
        "print(sorted((n, digest_of(fs[n].function)) for n in fs))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "fn.py")]
    said = subprocess.run(
        command,
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == str(sorted(here.items()))


def test_a_file_has_the_same_digests_in_another_folder(tmp_path):
    text = """
from pathlib import Path
from kairos.flow import Functions
functions = Functions()
HERE, ABOVE = Path(__file__).parent, Path(__file__).parents[3]
DATA, NAME = HERE / "data", str(HERE / "data.csv")

class Known:
    at = HERE / "known"

@functions.pure
def f(x):
    return [HERE, ABOVE, DATA, NAME, Known.at, Path(__file__).read_text()]
"""
    found = []
    for place in ("a/b/c", "d/e/f/g", "d"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        found.append(digests(tmp_path / place / "fn.py", text))
    other = digests(tmp_path / "d" / "fn.py", text.replace("data.csv", "other.csv"))

    assert found[0] == found[1] == found[2]
    assert other != found[0]


def test_a_chain_of_functions_has_no_limit():
    text = "def f0(x): return 1\n" + "\n".join(
        f"def f{n}(x): return f{n - 1}(x)" for n in range(1, 1000)
    )
    one = digest_of(made(text, "f999"))
    assert one == digest_of(made(text, "f999"))
    assert one != digest_of(made(text.replace("return 1", "return 2"), "f999"))


@pytest.mark.parametrize("function", [len, str.upper, partial(max, 1), dict, "".join])
def test_what_has_no_source_has_a_digest(function):
    assert digest_of(function) == digest_of(function)


def test_functions_that_call_each_other_have_digests():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    assert digest_of(even) != digest_of(odd)
