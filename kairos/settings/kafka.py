"""Options of the Kafka client in a file of settings, as librdkafka names them."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kairos.core import SetupError

_SECRET = re.compile(r"password|secret|passphrase|key\.pem|oauthbearer\.config")


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield options with dotted names, which TOML parses as nested tables unless quoted."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:  # librdkafka takes text alone; what is no option, the settings' types refuse
            text = str(value).lower() if isinstance(value, bool | int) else value
            yield prefix + name, text


def check_private(path: Path, options: Mapping[str, Any]) -> None:
    """Check that a file with secrets is private. Raises SetupError: Others can read it."""
    for name in options:
        if _is_secret(name) and path.stat().st_mode & 0o077:
            raise SetupError(
                f"--config {path} holds '{name}' and others can read it: 'chmod 600 {path}', or "
                f'write "{name}_env" = "VARIABLE" and put it into the environment'
            )


def _is_secret(option: str) -> bool:
    """Return whether an option of the Kafka client is a secret."""
    return _SECRET.search(option) is not None and not option.endswith("_env")
