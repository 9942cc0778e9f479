"""A copy of the checkout in which a fault is put, so that the checkout itself never changes."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_END_S = 5.0  # for tests that are stopped to end what they started
_FROM_S = 1_000_000_000  # times of changed files, each later than the one before


class Copy:
    """What is tracked or new in a checkout, and native code built there, in a folder of its own."""

    def __init__(self, checkout: Path, folder: Path, tree: str = "") -> None:
        """`tree`: the tests are those of this commit."""
        self.folder = folder
        self._writes = 0
        for each in files_of(checkout):
            to = folder / each
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / each, to, follow_symlinks=False)
        if tree:
            shutil.rmtree(folder / "tests", ignore_errors=True)
            archive = _git(checkout, "archive", tree, "tests")
            subprocess.run(("tar", "-x", "-C", folder), input=archive, check=True)
        data = Path(os.environ.get("KAIROS_DATA", checkout.parent / "shared" / "data"))
        self._environment = {
            **os.environ,
            "KAIROS_INTERPRETED": "1",
            "PYTHONPATH": f"{folder}:{folder / 'client'}",
            **({"KAIROS_DATA": str(data)} if data.is_dir() else {}),
        }

    def write(self, file: str, content: bytes) -> None:
        """Change a file so that no compiled code of its former text is taken for that of this."""
        path = self.folder / file
        path.write_bytes(content)
        self._writes += 1
        os.utime(path, (_FROM_S + self._writes,) * 2)

    def pytest(
        self, arguments: Iterable[str], given: Mapping[str, str], limit_s: float | None = None
    ) -> tuple[int | None, str]:
        """Return the exit code, None where the limit passed first; and what was printed."""
        shutil.rmtree(self.folder / ".hypothesis", ignore_errors=True)
        command = (sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider")
        with subprocess.Popen(
            (*command, *arguments),
            cwd=self.folder,
            env={**self._environment, **given},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                printed, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                _end(process)
                return None, ""
            except BaseException:
                _end(process)
                raise
        return process.returncode, printed.decode(errors="replace")


def files_of(checkout: Path) -> Sequence[str]:
    """Return what is tracked or new, by paths relative to the checkout."""
    names = _git(checkout, "ls-files", "-co", "--exclude-standard", "-z").decode().split("\0")
    native = [
        str(each.relative_to(checkout))
        for each in (checkout / "kairos").rglob("*.so")
        if "compiled" not in each.relative_to(checkout).parts
    ]
    return sorted({each for each in (*names, *native) if each and (checkout / each).is_file()})


def _git(checkout: Path, *arguments: str) -> bytes:
    return subprocess.run(("git", *arguments), cwd=checkout, check=True, capture_output=True).stdout


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Interrupt first: then tests end the processes that they started."""
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return
