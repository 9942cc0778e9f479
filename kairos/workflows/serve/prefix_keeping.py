"""Keep static beginnings of served flows' prompts in engines' caches between invocations.

When a beginning is used again is decided by `workflows/execute/prefix_touches.py`. Touches go
through the gateway at best-effort priority, as calls of the tenant that invoked the flow last.
"""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from kairos.core import SECOND, Header, KairosError
from kairos.gateway import Gateway, InnerGateway
from kairos.request import Caller
from kairos.workflows.compile.passes.static_prefixes import StaticPrefix
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.execute.commands import TOUCH_AGENT
from kairos.workflows.execute.prefix_touches import ServedPrefix
from kairos.workflows.run.chat_answer import read_chat
from kairos.workflows.serve.flow_llm import FlowLLM
from kairos.workflows.serve.invocation import OperatorFinished

logger = logging.getLogger(__name__)

_MOST = 1_000  # beginnings that are known; the one called longest ago is forgotten

OnFinished = Callable[[OperatorFinished], None]


class _Kept:
    """A beginning, its latest caller, and the timer of its next touch."""

    def __init__(self, prefix: StaticPrefix, model: str | None) -> None:
        self.prefix, self.model = prefix, model
        self.known = ServedPrefix(prefix.tokens)
        self.caller: Caller | None = None
        self.app = ""
        self.timer: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class PrefixKeeping:
    """Times the touches of all tenants' beginnings."""

    def __init__(self, gateway: Gateway, inner: InnerGateway) -> None:
        """`inner`: lets touches in; the gateway has the clock, and classes of service."""
        self._gateway, self._inner, self._now = gateway, inner, gateway.sink.now
        self._kept: OrderedDict[tuple[str, str | None, StaticPrefix], _Kept] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def listener(
        self, caller: Caller, app: str, model: str | None, plan: Plan, on_finished: OnFinished
    ) -> OnFinished:
        """Return `on_finished` for an invocation that begins now, which notes its calls, too."""
        began_at = self._now()
        of = {name: each for each in plan.static_prefixes for name in each.operators}

        def finished(operator: OperatorFinished) -> None:
            prefix = of.get(operator.operator.rpartition(".")[2])
            if prefix is not None and not operator.merged:
                kept = self._of(caller.tenant, model, prefix)
                kept.caller, kept.app = caller, app
                cached = operator.cached_tokens
                self._touch_at(kept, kept.known.on_call(began_at, self._now(), cached))
            on_finished(operator)

        return finished

    def _of(self, tenant: str, model: str | None, prefix: StaticPrefix) -> _Kept:
        key = tenant, model, prefix
        if key not in self._kept:
            self._kept[key] = _Kept(prefix, model)
            if len(self._kept) > _MOST:
                self._kept.popitem(last=False)[1].cancel()
        self._kept.move_to_end(key)
        return self._kept[key]

    def _touch_at(self, kept: _Kept, at: int | None) -> None:
        kept.cancel()
        if at is not None:
            delay_s = max(0, at - self._now()) / SECOND
            begin = partial(self._begin, kept)
            kept.timer = asyncio.get_running_loop().call_later(delay_s, begin)

    def _begin(self, kept: _Kept) -> None:
        kept.timer = None
        task = asyncio.create_task(self._touch(kept))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _touch(self, kept: _Kept) -> None:
        assert kept.caller is not None, "somebody has invoked the flow"
        service_class = self._gateway.classes.spare(kept.caller)
        if service_class is None:
            return
        name, prefix = f"{TOUCH_AGENT}-{secrets.token_hex(12)}", kept.prefix
        headers = {
            Header.APP: kept.app,
            Header.AGENT: TOUCH_AGENT,
            Header.CLASS: service_class,
            Header.REQUEST_ID: name,
            Header.WORKFLOW_ID: name,
        }
        body = {**({} if prefix.model is None else {"model": prefix.model}), **prefix.body}
        self._inner.callers.add(name, kept.caller)
        try:
            llm = FlowLLM(self._inner, name, name, {}, kept.model, {})
            answer = read_chat(await llm.complete(body, headers))
        except KairosError as error:  # nobody needs it
            logger.debug("a beginning of %s was not touched: %s", prefix.operators[0], error)
            return
        finally:
            self._inner.callers.remove(name)
        self._touch_at(kept, kept.known.on_touch(self._now(), answer.cached_tokens))
