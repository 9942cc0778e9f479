"""`kairos-run [--base-url URL] [--app NAME] COMMAND ...`: run a Python program with the client.

It has the same effect as `import kairos_client.auto` at the start of the program, and of every
Python process that it starts.
"""

import argparse
import os
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="kairos-run",
        description="Run a Python program whose LLM calls tell Kairos their workflow and agent.",
        epilog="example: kairos-run --base-url http://localhost:8000/v1 python app.py",
    )
    parser.add_argument(
        "--base-url", help="base URL of Kairos [$KAIROS_BASE_URL, or $OPENAI_BASE_URL]"
    )
    parser.add_argument("--app", help="name of its kind of workflow [the framework's name for it]")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="such as: python app.py")
    options = parser.parse_args()
    if not options.command:
        parser.error("say what to run, such as: kairos-run python app.py")
    environ = os.environ | environment(options.base_url, options.app)
    try:
        os.execvpe(options.command[0], options.command, environ)  # noqa: S606
    except OSError as error:
        sys.exit(f"kairos-run: cannot run {options.command[0]}: {error.strerror}")


def environment(base_url: str | None, app: str | None) -> dict[str, str]:
    """Return the environment of the program. The base URL is also set for the OpenAI SDK."""
    package = Path(__file__).resolve().parent
    paths = [str(package / "preload"), str(package.parent), os.environ.get("PYTHONPATH", "")]
    given = {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    if base_url:
        given |= {"KAIROS_BASE_URL": base_url, "OPENAI_BASE_URL": base_url}
    if app:
        given["KAIROS_APP"] = app
    return given


if __name__ == "__main__":
    main()
