"""Engines started and stopped by commands: local processes, or programs that start them elsewhere.

Commands are lists of arguments; no shell is involved. `{port}` in them, and in the URL, is one of
the configured ports. An engine outlives the process that started it.
"""

import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from kairos.core import SetupError

_MOST_ARGUMENTS = 1_000
_STOP_S = 60.0


class EngineCommands(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Engines that are processes of this machine, or that a program here starts elsewhere."""

    start: list[str]
    url: str  # http://HOST:{port}
    ports: tuple[int, int]  # first and last
    stop: list[str] | None = None  # None: the process is told to end by SIGTERM
    log: str | None = None  # a folder: what each engine says is added to PORT.log

    def check(self) -> None:
        """Raise SetupError if a setting cannot be used."""
        for name, command in (("start", self.start), ("stop", self.stop)):
            if command is not None and not 1 <= len(command) <= _MOST_ARGUMENTS:
                raise SetupError(f"commands.{name}: a program and its arguments, each by itself")
        first, last = self.ports
        if not 1 <= first <= last <= 65_535:
            raise SetupError("commands.ports: the first and the last, from 1 to 65535")
        if "{port}" not in self.url:
            raise SetupError("commands.url: {port} must be in it, as in http://127.0.0.1:{port}")


class CommandEngines:
    """Engines started by commands."""

    def __init__(self, commands: EngineCommands) -> None:
        self._commands = commands
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        first, last = commands.ports
        self._ports = {self._filled(commands.url, port): port for port in range(first, last + 1)}

    def adopted(self, known: Iterable[str]) -> list[str]:
        """Return the known engines that a stop command can stop; without one, no earlier engine."""
        if self._commands.stop is None:
            return []
        there = set(known)
        return [url for url in self._ports if url in there]

    def start(self, known: Iterable[str]) -> str:
        taken = {*known, *self._processes}
        url = next((each for each in self._ports if each not in taken), None)
        if url is None:
            raise SetupError("commands.ports: all are in use; name more of them")
        self._processes[url] = self._run(self._commands.start, self._ports[url])
        return url

    def failed(self, url: str) -> str | None:
        process = self._processes.get(url)
        if process is None or process.poll() is None or self._commands.stop is not None:
            # With a command to stop engines, that which starts them may well have ended.
            return None if process is None or not process.returncode else _ended(process)
        return _ended(process)

    def stop(self, url: str) -> None:
        process = self._processes.get(url)
        if self._commands.stop is not None:
            ended = self._run(self._commands.stop, self._ports[url])
            try:
                status = ended.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                ended.kill()
                ended.wait()
                raise SetupError(f"commands.stop did not end in {_STOP_S:.0f} s") from None
            if status:
                raise SetupError(f"commands.stop ended with status {status} for {url}")
        elif process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.pop(url, None)

    def _run(self, command: list[str], port: int) -> subprocess.Popen[bytes]:
        """Run a command in a session of its own, so that Ctrl-C here does not reach it."""
        filled = [self._filled(each, port) for each in command]
        log = self._commands.log
        try:
            if log is None:
                return _spawn(filled, subprocess.DEVNULL)
            folder = Path(log)
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / f"{port}.log").open("ab") as said:
                return _spawn(filled, said)
        except (OSError, ValueError) as error:
            raise SetupError(f"{filled[0]} cannot be started: {error}") from None

    @staticmethod
    def _filled(text: str, port: int) -> str:
        return text.replace("{port}", str(port))


def _spawn(command: list[str], output: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  (the operator's own command, as a list of arguments)
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _ended(process: subprocess.Popen[bytes]) -> str:
    return f"its process ended with status {process.returncode}"
