"""How the Python that runs was built, as far as it says so."""

import platform

import pytest

from kairos.host.interpreter import built
from tests.support.cli.command import invoke


@pytest.mark.parametrize(
    ("prefix", "arguments", "expected"),
    [
        ("/usr", "'--enable-shared'", "the system's"),
        ("/opt/python", "'--enable-optimizations' '--with-lto'", "optimized"),
        ("/opt/python", "'--enable-shared'", "built without optimizations"),
        ("/opt/python", "", "built without optimizations"),
    ],
)
def test_how_it_was_built(prefix, arguments, expected):
    assert built(prefix, arguments) == expected


def test_the_version_says_which_python_runs():
    said = invoke("--version").output
    assert f", Python {platform.python_version()}, " in said
