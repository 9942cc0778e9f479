"""What calls cost their tenants: a file with prices, and calls to money."""

import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kairos.core.errors import InvalidFile, SetupError
from kairos.core.model import SECOND
from kairos.host.toml_file import read_toml
from kairos.observe.metering import CallUse

_HOUR_US = 3600 * SECOND
_MILLION = 1_000_000


class ModelPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one model. What is not named costs nothing; but cached tokens cost what others do."""

    prompt: float | None = None  # per million tokens of prompts that were not cached
    cached: float | None = None  # per million tokens of prompts that were; None: as `prompt`
    answer: float | None = None  # per million tokens
    instance_hour: float | None = None  # per hour of service

    def of(self, use: CallUse) -> float:
        """Of one call, in the file's currency."""
        prompt = self.prompt or 0.0
        cached = prompt if self.cached is None else self.cached
        tokens = (use.prompt_tokens - use.cached_tokens) * prompt + use.cached_tokens * cached
        tokens += use.answer_tokens * (self.answer or 0.0)
        return tokens / _MILLION + use.service_us / _HOUR_US * (self.instance_hour or 0.0)


_NONE = ModelPrices()


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file with prices. A model with a table of its own has those prices alone."""

    currency: str = ""  # as costs are headed
    default: ModelPrices = _NONE  # of models without a table, and of calls that name no model
    models: Mapping[str, ModelPrices] = {}

    def of(self, use: CallUse) -> float:
        """Of one call, in `currency`. Raises SetupError: nothing says the price of its model."""
        model = use.request.model
        found = self.models.get(model, self.default) if model is not None else self.default
        if found != _NONE:
            return found.of(use)
        if not (use.prompt_tokens or use.answer_tokens or use.service_us):
            return 0.0
        which = f"the model '{model}'" if model is not None else "calls that name no model"
        raise SetupError(f"the prices have none for {which}: add it, or a table [default]")


def read_prices(path: Path) -> Prices:
    """Raises InvalidFile: it cannot be read, or is no file of prices; it says what is wrong."""
    prices = read_toml(path, Prices)
    if prices.default == _NONE and not prices.models:
        raise InvalidFile(path, "there is no price: give a table [default] or [models.NAME]")
    _check(path, "default", prices.default)
    for name, table in prices.models.items():
        if table == _NONE:
            known = ", ".join(ModelPrices.__struct_fields__)
            raise InvalidFile(path, f"models.{name} has no price; known are: {known}")
        _check(path, f"models.{name}", table)
    return prices


def _check(path: Path, name: str, prices: ModelPrices) -> None:
    for each, value in msgspec.structs.asdict(prices).items():
        if value is not None and not 0 <= value < math.inf:  # nor is it "not a number"
            raise InvalidFile(path, f"{name}.{each} must be 0 or more, and finite")
