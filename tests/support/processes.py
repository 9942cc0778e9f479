"""Commands of Kairos as processes that a test can end, crash and start again."""

import asyncio
import os
import signal
import subprocess
from contextlib import suppress

from tests.support.host.forked import Program

STOP_S = 60
READY_S = 60


class Process:
    """One command, in a group of its own. Ends with this process, however that ends.

    A context manager that starts it, and kills it in the end. `fresh`: as a Python of its own,
    not as a fork.
    """

    def __init__(
        self, directory, name, *arguments, module="kairos.cli.main", environ=None, fresh=False
    ):
        self.name = name
        self.log = directory / f"{name}.log"
        self._words = ("kairos.engines.child", module, *arguments)
        self._fresh = fresh
        self._environ = {**os.environ, **(environ or {})}
        self._process = None

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.kill()

    def start(self):
        with self.log.open("ab") as log:
            self._said_before = log.tell()
            self._process = Program(
                *self._words,
                fresh=self._fresh,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self._environ,
            )
        return self

    @property
    def said(self):
        """What it has printed since it was started last."""
        with self.log.open("rb") as log:
            log.seek(self._said_before)
            return log.read().decode(errors="replace")

    @property
    def pid(self):
        return self._process.pid

    @property
    def ended(self):
        return self._process.poll() is not None

    @property
    def runs(self):
        """It was started, and has neither been killed nor ended by itself."""
        return self._process is not None and not self.ended

    async def until_it_says(self, text, limit_s=READY_S):
        try:
            async with asyncio.timeout(limit_s):
                while text not in self.said:
                    assert self._process.poll() is None, f"{self.name} ended: {self.said[-2000:]}"
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{self.name} did not say '{text}': {self.said[-2000:]}") from None

    def wait(self):
        """Its exit status, once it has ended."""
        return self._process.wait(STOP_S)

    def stop(self):
        """SIGTERM: it leaves in order. Returns its exit status."""
        os.kill(self._process.pid, signal.SIGTERM)
        status = self.wait()
        self.kill()
        return status

    def kill(self):
        """SIGKILL: it crashes. Nothing where it has ended already."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process.stdin.close()
            self._process = None
