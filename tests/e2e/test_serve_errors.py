"""A `kairos serve` that cannot start says why in one line, and ends."""

import os
import socket

import pytest

from tests.support.host import forked


def fails(*arguments, **environ):
    """The line in which it says why."""
    inherited = {name: value for name, value in os.environ.items() if "KAIROS" not in name}
    command = ("kairos.cli.main", "serve", *arguments)
    status, printed, said = forked.run(*command, env=inherited | environ)
    assert status == 1
    assert printed == ""
    (line,) = said.splitlines()
    assert line.startswith("kairos: ")
    return line.removeprefix("kairos: ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name at least one engine"),
        (["--engine", "nonsense"], "'nonsense' is not a URL like http://"),
        (["--engine", "ftp://kairos"], "'ftp://kairos' is not a URL like http://"),
        (["--engine", "http://[kairos"], "'http://[kairos' is not a URL"),
        (["--engine", "http://kairos:port"], "'http://kairos:port' is not a URL"),
        (["--engine", "http://k,max_num_seqs=x"], "--engine http://k,max_num_seqs=x: "),
        (["--engine", "http://k,kv_tokens=0"], "kv_tokens must be at least 1"),
        (["--engine", "http://k", "--engine", "http://k"], "engine k is named twice"),
        (["--engine", "http://me:secret@k"], "put its key into api_key_env"),
        (["--engine", "http://k", "--policy", "best"], "there is no policy 'best'; known: fcfs"),
        (["--engine", "http://k", "--port", "70000"], "port 70000 is not a port"),
        (["--engine", "http://k", "--host", "no.such.host.invalid"], "cannot listen on"),
        (["--config", "/nowhere.toml"], "--config /nowhere.toml: No such file"),
    ],
)
def test_a_start_that_cannot_work_says_why_in_one_line(arguments, says):
    assert says in fails("--admin-port", "0", *arguments)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("port = ", "Invalid value (at "),
        ("pots = 1", "pots"),
        ('port = "many"', "$.port"),
        ("[[engine]]\nurl = 'http://k'\napi_key_env = 'NO_SUCH'", "variable NO_SUCH is not set"),
        ("[[key]]\nsha256 = 'no'\ntenant = 'a'", "must be 64 hexadecimal digits"),
        (b"\xff\xfe", "utf-8"),
    ],
)
def test_a_file_that_cannot_be_used_says_why_in_one_line(tmp_path, text, says):
    file = tmp_path / "kairos.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())

    assert says in fails("--config", str(file))


def test_a_variable_that_cannot_be_used_says_why_in_one_line():
    assert "port" in fails("--engine", "http://k", KAIROS_PORT="many")


@pytest.mark.parametrize("option", ["--port", "--admin-port"])
def test_a_port_in_use_is_named(option):
    other = "--port" if option == "--admin-port" else "--admin-port"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = fails("--engine", "http://k", other, "0", option, port)

    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in said


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    in_the_way = tmp_path / "log"
    in_the_way.write_text("a file")

    assert f"cannot use the log directory {in_the_way}" in fails(
        "--engine", "http://k", "--log", str(in_the_way)
    )
