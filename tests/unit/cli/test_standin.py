"""`kairos standin`: its options, and where it listens."""

import argparse
import inspect
from typing import get_args

import pytest

from kairos.cli.standin import _Failure
from kairos.cli.standin import standin as standin_command
from kairos.core import SetupError
from kairos.simulate import until_killed
from tests.support.simulate.standin import Failure, read_arguments, serve


def test_the_command_has_the_options_and_defaults_of_the_module(monkeypatch):
    monkeypatch.setattr("sys.argv", ["standin"])
    of_module = vars(read_arguments()) | {"port": 8100}
    given = inspect.signature(standin_command).parameters

    assert {name: each.default for name, each in given.items()} == of_module
    assert get_args(_Failure) == get_args(Failure)


async def test_the_command_serves_until_it_is_stopped_and_says_where_it_cannot():
    async with serve() as taken:
        port = taken.url.rpartition(":")[2]
        with pytest.raises(SetupError, match="address already in use; name another --port"):
            await until_killed(**vars(options(port=int(port))))


def options(**given):
    made = {
        name: each.default for name, each in inspect.signature(standin_command).parameters.items()
    }
    return argparse.Namespace(**(made | given))
