"""Python functions that flows may call, by name, with their purity declared."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from kairos.errors import SetupError
from kairos.plan.check import every
from kairos.plan.operators import Purity, RegisteredCall
from kairos.plan.pipeline import Plan

_Callable = TypeVar("_Callable", bound=Callable[..., object])


class RegisteredFunction(msgspec.Struct, frozen=True):
    """It is called with its arguments by name, JSON values, and returns one."""

    function: Callable[..., object]
    purity: Purity
    version: str


class Functions:
    """The functions of whoever runs a flow. A flow itself carries no code: it names these.

    `pure`: equal arguments, equal results, and nothing else happens; so equal calls are made once,
    and results are kept. `sampled`: results differ, but nothing else happens. `effect`: something
    happens; such a call is never merged, and made again only after a crash or with `retries`.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, RegisteredFunction] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __getitem__(self, name: str) -> RegisteredFunction:
        """Raises SetupError: no function has this name."""
        if name not in self._by_name:
            known = ", ".join(sorted(self._by_name)) or "none"
            raise SetupError(f"no function '{name[:256]}' is registered; there are: {known}")
        return self._by_name[name]

    def register(
        self,
        function: Callable[..., object],
        *,
        purity: Purity,
        version: str = "",
        name: str | None = None,
    ) -> str:
        """Its name, by default the function's own. The same function may be registered again.

        Raises:
            SetupError: another one has this name.
        """
        known = name or function.__name__
        new = RegisteredFunction(function, purity, version)
        if self._by_name.setdefault(known, new) != new:
            raise SetupError(
                f"two functions are called '{known}', or one is declared in two ways; give another "
                "`name`"
            )
        return known

    def known_as(self, function: Callable[..., object] | str, purity: Purity, version: str) -> str:
        """Its name. One that is not registered yet is, as is said here."""
        if isinstance(function, str):
            return function
        known = (name for name, each in self._by_name.items() if each.function is function)
        return next(known, None) or self.register(function, purity=purity, version=version)

    def pure(self, function: _Callable) -> _Callable:
        self.register(function, purity="pure")
        return function

    def effect(self, function: _Callable) -> _Callable:
        self.register(function, purity="effect")
        return function

    def check(self, plan: Plan) -> None:
        """Raises SetupError: the plan calls one that is not here, or takes it for purer than it is,
        or for another version."""
        for operator in every(plan.declaration.operators):
            params = operator.params
            if not isinstance(params, RegisteredCall):
                continue
            known = self[params.function]
            declared = (params.purity, params.version)
            if declared != (known.purity, known.version):
                raise SetupError(
                    f"operator '{operator.name}' calls '{params.function}' as {declared[0]}, "
                    f"version '{declared[1]}'; it is registered as {known.purity}, version "
                    f"'{known.version}'"
                )
