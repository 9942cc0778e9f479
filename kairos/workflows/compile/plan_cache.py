"""Cache of plans by template (Teola's cache of optimized graphs).

A template is a flow without a query's settings. Most settings, such as `max_tokens` and `top_k`,
affect no pass: a plan made with other values of the same settings is reused, with the values put
in. If a pass may have decided by the value (a temperature, a batch; an operator that was merged or
split), a plan is valid for its values only.
"""

from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from kairos.workflows.compile.check import check_params, every_operator
from kairos.workflows.compile.passes.decoding import partial_decodes
from kairos.workflows.compile.pipeline import Passes, Plan
from kairos.workflows.compile.query_settings import with_settings

MOST_PLANS, MOST_BYTES = 256, 16 << 20  # bytes: of the plans' sources, as given
# Parameters whose values affect no pass.
_FREE = frozenset(
    ("max_tokens", "top_p", "seed", "stop", "top_k", "max_items", "max_rounds", "size", "overlap")
)

_Settings = Mapping[str, object]  # by OPERATOR.PARAMETER
_Key = tuple[str, Passes, tuple[str, ...], bytes]


class PlanCache:
    """LRU cache of plans."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, tuple[Plan, int]] = OrderedDict()
        self._held_bytes = 0

    def find(self, template: str, passes: Passes, settings: _Settings) -> Plan | None:
        """Return a plan with the values of the settings; None if it is not cached.

        `template`: a name, such as a hash, unique to a flow without settings.

        Raises:
            InvalidFlow: a setting has a value that is not allowed.
        """
        for key in (_of_names(template, passes, settings), _of_values(template, passes, settings)):
            held = self._kept.get(key)
            if held is not None:
                self._kept.move_to_end(key)
                return _set(held[0], settings)
        return None

    def keep(
        self, template: str, passes: Passes, settings: _Settings, plan: Plan, size_bytes: int
    ) -> None:
        """Cache a plan that was made of the flow with these settings."""
        key = (_of_names if _holds(plan, settings) else _of_values)(template, passes, settings)
        if key in self._kept:
            return
        self._kept[key] = plan, size_bytes
        self._held_bytes += size_bytes
        while len(self._kept) > MOST_PLANS or self._held_bytes > MOST_BYTES:
            _, (_, gone) = self._kept.popitem(last=False)
            self._held_bytes -= gone


def _of_names(template: str, passes: Passes, settings: _Settings) -> _Key:
    free = tuple(sorted(name for name in settings if _is_free(name)))
    bound = {name: value for name, value in settings.items() if not _is_free(name)}
    return template, passes, free, msgspec.json.encode(bound, order="sorted")


def _of_values(template: str, passes: Passes, settings: _Settings) -> _Key:
    return template, passes, (), msgspec.json.encode(settings, order="sorted")


def _is_free(setting: str) -> bool:
    return setting.partition(".")[2] in _FREE


def _holds(plan: Plan, settings: _Settings) -> bool:
    """Return whether the plan is valid for all values of the free settings.

    It is if each of their operators still exists as itself.
    """
    names = {each.name for each in every_operator(plan.declaration.operators)} - {
        *plan.merged.values()
    }
    return all(name.partition(".")[0] in names for name in settings if _is_free(name))


def _set(plan: Plan, settings: _Settings) -> Plan:
    """Return the plan with this query's values of free settings; it has the others already."""
    free = {name: value for name, value in settings.items() if _is_free(name)}
    named = {each.name for each in every_operator(plan.declaration.operators)}
    if not free or any(name.partition(".")[0] not in named for name in free):
        return plan
    declaration = with_settings(plan.declaration, free)
    changed = {name.partition(".")[0] for name in free}
    by_name = {e.name: e for e in every_operator(declaration.operators)}
    for name in changed:
        check_params(by_name[name])
    return msgspec.structs.replace(
        plan,
        declaration=declaration,
        partial=partial_decodes(declaration.operators) if plan.passes.decoding else (),
        prefills=tuple(
            msgspec.structs.replace(each, params=by_name[each.operator].params)
            for each in plan.prefills
        ),
    )
