"""Registered Python functions that flows may call, with declared purity."""

from collections.abc import Callable, Iterator, Mapping
from inspect import isawaitable
from typing import TypeVar

import msgspec

from kairos.core import InvalidRequest, KairosError, SetupError
from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.operators import Declaration, Operator, Params, Purity, RegisteredCall
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.compile.references import with_changed
from kairos.workflows.compile.values import NotJson, copied, plain
from kairos.workflows.declare.sources import digest_of

_Callable = TypeVar("_Callable", bound=Callable[..., object])


class RegisteredFunction(msgspec.Struct, frozen=True):
    """A function that is called with its arguments by name, JSON values, and returns one.

    A batched one gets each argument as a list, with an element for each call, and returns a list.
    """

    function: Callable[..., object]
    purity: Purity
    version: str
    batched: bool = False

    def call(self, arguments: Mapping[str, object]) -> object:
        """Call the function with copies of the arguments, so that it cannot change shared values.

        Returns:
            A JSON value of its own; or an awaitable, whose result is to be passed to `given`.

        Raises:
            FunctionFailed: the function raised anything, SystemExit included, or its value is not
                JSON.
            KairosError: the function raised it.
        """
        try:
            value = self.function(**copied(arguments))
        except KairosError:
            raise
        except BaseException as error:  # noqa: BLE001 - it ends its row, not what runs it
            raise FunctionFailed(said_of(error)) from None
        return value if isawaitable(value) else given(value)

    def call_alone(self, arguments: Mapping[str, object]) -> object:
        """Call the function for one call, whether it takes several at once or not.

        Raises: as `call`.
        """
        if not self.batched:
            return self.call(arguments)
        values = self.call({name: [value] for name, value in arguments.items()})
        return values[0] if isinstance(values, list) and len(values) == 1 else values


class FunctionFailed(Exception):
    """A function has no value for its row. The message has the function's error."""


def given(value: object) -> object:
    """Return a function's value as JSON, copied. Raises FunctionFailed: JSON has no such value."""
    try:
        return plain(value)
    except NotJson as error:
        raise FunctionFailed(f"what the function gave is not JSON: {error}") from None
    except BaseException as error:  # noqa: BLE001 - a property of the value, say, may raise anything
        raise FunctionFailed(f"what the function gave is not JSON: {said_of(error)}") from None


def said_of(error: BaseException) -> str:
    """Return an error's type and message, as text that can be encoded."""
    try:
        words = str(error)
    except BaseException:  # noqa: BLE001 - a user's `__str__` may raise anything
        words = ""
    said = f"{type(error).__name__}: {words}" if words else type(error).__name__
    return said.encode(errors="backslashreplace").decode()


class Functions:
    """Registered functions, which flows call by name; a flow contains no code.

    `pure`: equal arguments, equal results, and no effects; so equal calls are made once, and
    results are stored. `sampled`: results differ, without effects. `effect`: such a call is never
    merged, and repeated only after a crash or with `retries`.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, RegisteredFunction] = {}
        self.passes: list[Callable[[Declaration], Declaration]] = []  # of flows that are served

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __getitem__(self, name: str) -> RegisteredFunction:
        """Return a function. Raises SetupError: no function has this name."""
        if name not in self._by_name:
            known = ", ".join(sorted(self._by_name)) or "none"
            raise SetupError(f"no function '{name[:256]}' is registered; there are: {known}")
        return self._by_name[name]

    def call_pure(self, name: str, arguments: Mapping[str, object]) -> object:
        """Return the value of a pure function; None for any other, which is not called.

        Raises:
            InvalidRequest: it has no value.
        """
        known = self[name]
        if known.purity != "pure":
            return None
        try:
            value = known.call_alone(arguments)
        except FunctionFailed as error:
            raise InvalidRequest(str(error)[:200]) from error
        return None if isawaitable(value) else value

    def register(
        self,
        function: Callable[..., object],
        *,
        purity: Purity,
        version: str = "",
        name: str | None = None,
        batched: bool = False,
    ) -> str:
        """Register a function; return its name, by default its own. It may be registered again.

        With `batched`, waiting calls are made together: the function gets each argument as a list,
        with an element for each call, and returns a list of their values.

        Raises:
            SetupError: another function has this name.
        """
        known = name or function.__name__
        new = RegisteredFunction(function, purity, version, batched)
        if self._by_name.setdefault(known, new) != new:
            raise SetupError(
                f"two functions are called '{known}', or one is declared in two ways; give another "
                "`name`"
            )
        return known

    def known_as(
        self,
        function: Callable[..., object] | str,
        purity: Purity,
        version: str,
        *,
        batched: bool = False,
    ) -> str:
        """Return the name of a function; register it if it is not registered yet."""
        if isinstance(function, str):
            return function
        known = (name for name, each in self._by_name.items() if each.function is function)
        return next(known, None) or self.register(
            function, purity=purity, version=version, batched=batched
        )

    def versioned(self, declaration: Declaration) -> Declaration:
        """Return the flow with digests of code as versions of calls that name no version.

        Constants of modules are taken as they are now.
        """
        digests: dict[str, str] = {}

        def change(operator: Operator) -> Params:
            params = operator.params
            if not isinstance(params, RegisteredCall) or params.version:
                return params
            name = params.function
            if name not in digests:
                digests[name] = digest_of(self[name].function)
            return msgspec.structs.replace(params, version=f"source {digests[name]}")

        return with_changed(declaration, change)

    def pure(self, function: _Callable) -> _Callable:
        self.register(function, purity="pure")
        return function

    def effect(self, function: _Callable) -> _Callable:
        self.register(function, purity="effect")
        return function

    def rewrites(self, function: _Callable) -> _Callable:
        """Register a pass of the user's that rewrites each flow served with these functions."""
        self.passes.append(function)  # type: ignore[arg-type]
        return function

    def check(self, plan: Plan) -> None:
        """Check that a plan's calls fit the registered functions.

        Raises:
            SetupError: the plan calls a function that is not registered, or declares another
                purity, version or batching for it.
        """
        for operator in every_operator(plan.declaration.operators):
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
            if params.is_batched != known.batched:
                takes = "several calls at once" if known.batched else "one call at a time"
                raise SetupError(
                    f"operator '{operator.name}': '{params.function}' is registered as taking "
                    f"{takes}: declare `batched` alike"
                )
