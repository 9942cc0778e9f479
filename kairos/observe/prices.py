"""Prices of calls: reads a file of prices, and computes costs."""

import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kairos.core import SECOND, InvalidFile, SetupError
from kairos.host import read_toml
from kairos.observe.metering import CallUse

_HOUR_US = 3600 * SECOND
_MILLION = 1_000_000


class ModelPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of one model.

    Unnamed ones are 0, except that cached tokens default to the prompt's price.
    """

    prompt: float | None = None  # per million uncached prompt tokens
    cached: float | None = None  # per million cached prompt tokens; None: same as `prompt`
    answer: float | None = None  # per million answer tokens
    instance_hour: float | None = None  # per hour of service

    def of(self, use: CallUse) -> float:
        """Return the cost of a call, in the file's currency."""
        prompt = self.prompt or 0.0
        cached = prompt if self.cached is None else self.cached
        tokens = (use.prompt_tokens - use.cached_tokens) * prompt + use.cached_tokens * cached
        tokens += use.answer_tokens * (self.answer or 0.0)
        return tokens / _MILLION + use.service_us / _HOUR_US * (self.instance_hour or 0.0)


_NONE = ModelPrices()


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """File of prices. A model with its own table uses only that table."""

    currency: str = ""  # shown in the heading of costs
    default: ModelPrices = _NONE  # for models without a table, and calls without a model
    models: Mapping[str, ModelPrices] = {}

    def of(self, use: CallUse) -> float:
        """Return the cost of a call, in `currency`. Raises SetupError: its model has no price."""
        model = use.request.model
        found = self.models.get(model, self.default) if model is not None else self.default
        if found != _NONE:
            return found.of(use)
        if not (use.prompt_tokens or use.answer_tokens or use.service_us):
            return 0.0
        which = f"the model '{model}'" if model is not None else "calls that name no model"
        raise SetupError(f"there is no price for {which}: add it, or a table [default]")


def read_prices(path: Path) -> Prices:
    """Read a file of prices.

    Raises:
        InvalidFile: it cannot be read or is invalid; the message has the reason.
    """
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
