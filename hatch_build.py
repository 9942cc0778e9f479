"""The build of Kairos compiles `kairos/dispatcher/forecast.c`, where it can; see
`scripts/compile_forecast.py`."""

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileForecast(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        root = Path(self.root)
        script = runpy.run_path(str(root / "scripts" / "compile_forecast.py"))
        library = script["compile_forecast"](root)
        if library is None:
            return
        build_data["artifacts"].append(str(library.relative_to(root)))
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
