"""Plans of flows that came over HTTP, cached by the flow's text and its settings."""

from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b

import msgspec

from kairos.core import SetupError
from kairos.host import TenantThreads
from kairos.workflows.compile.operators import Declaration, Generation, Reference
from kairos.workflows.compile.pipeline import Passes, Plan, compile_plan
from kairos.workflows.compile.plan_cache import PlanCache
from kairos.workflows.compile.query_settings import with_settings
from kairos.workflows.compile.rewriting import rewritten
from kairos.workflows.declare.functions import Functions
from kairos.workflows.declare.yaml_file import read_json, read_yaml
from kairos.workflows.run.processing import Processors, check_processors, with_models
from kairos.workflows.serve.records import FlowRecord, FlowRefused


class FlowPlans:
    """Cache of plans: one for a flow and the names of its settings, for all values of these."""

    def __init__(
        self,
        functions: Functions,
        processors: Processors | None,
        threads: TenantThreads,
        *,
        shares: bool = False,
        batches: Mapping[str, int] = {},
        without: Sequence[str] = (),
    ) -> None:
        """Prepare the cache.

        `functions`, `processors`: available to flows. `threads`: where plans are made. `shares`:
        whether invocations fetch results of others. `batches`: batch sizes measured to be
        efficient. `without`: passes that are off.
        """
        # A single row has no later rows whose calls could be ordered.
        off = dict.fromkeys(without, False)
        self._passes = Passes(**{"cached": shares, "order": False, **off})
        self._functions, self._processors, self._threads = functions, processors, threads
        self._batches = batches
        self._plans = PlanCache()

    async def checked(self, tenant: str, name: str, source: str, *, is_json: bool) -> Plan:
        """Return the plan of a flow that is to be stored. Raises FlowRefused: it cannot be run."""
        make = partial(self._compiled, name, source, is_json, {})
        return await self._threads.run(tenant, make)

    async def plan(self, tenant: str, record: FlowRecord, settings: Mapping[str, object]) -> Plan:
        """Return the plan for these settings. Raises FlowRefused: it cannot be run with them."""
        try:
            held = self._plans.find(record.digest, self._passes, settings)
        except SetupError as error:
            raise FlowRefused(str(error), "settings") from None
        if held is not None:
            return held
        told = record.name, record.source, record.is_json, settings
        plan = await self._threads.run(tenant, partial(self._compiled, *told))
        size = len(record.source) + len(msgspec.json.encode(settings))
        self._plans.keep(record.digest, self._passes, settings, plan, size)
        return plan

    def _compiled(
        self, name: str, source: str, is_json: bool, settings: Mapping[str, object]
    ) -> Plan:
        try:
            declaration = _declaration(name, source, is_json=is_json)
            declaration = rewritten(declaration, self._functions.passes)
            asked = with_models(with_settings(declaration, settings), self._processors)
            plan = compile_plan(asked, self._passes, batches=self._batches)
            self._functions.check(plan)
            check_processors(plan, self._processors)
        except SetupError as error:
            param = "settings" if settings else None
            raise FlowRefused(str(error), param) from None
        return plan


def spoken_by(plan: Plan) -> str | None:
    """Return the operator whose answer, as it is, is the only output.

    None: there is no such operator, or it has another value where it fails.
    """
    outputs = [each.value for each in plan.declaration.outputs]
    if len(outputs) != 1 or not isinstance(outputs[0], Reference) or outputs[0].path:
        return None
    for each in plan.declaration.operators:
        if each.name == outputs[0].operator and isinstance(each.params, Generation):
            return each.name if each.params.schema is None and each.on_error == "fail" else None
    return None


def digest_of(source: str, *, is_json: bool) -> str:
    kind = b"json " if is_json else b"yaml "
    return blake2b(kind + source.encode(), digest_size=16).hexdigest()


def _declaration(name: str, source: str, *, is_json: bool) -> Declaration:
    """Read a flow. Raises SetupError."""
    declaration = (read_json if is_json else read_yaml)(source, name)
    if declaration.name != name:
        raise SetupError(
            f"the flow calls itself '{declaration.name[:64]}': put it as that, or change `flow`"
        )
    return declaration
