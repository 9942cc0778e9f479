"""Identity of a call from all sources: field by field, the one of highest rank counts.

declared: `X-Kairos-*` headers; alias: what agents and frameworks already send; route: a base URL
for the agent; trace: W3C trace context. An API key for one app overrides the app.
"""

from collections.abc import Mapping

import msgspec

from kairos.request.caller import Caller
from kairos.request.identity.agent_urls import Route
from kairos.request.identity.aliases import Aliases
from kairos.request.identity.declared import declared_identity
from kairos.request.identity.identity import Headers, Identity
from kairos.request.identity.tracing import add_traced


def identity_of(
    headers: Headers,
    told: Mapping[str, msgspec.Raw],
    route: Route,
    caller: Caller,
    aliases: Aliases,
) -> Identity:
    """Return the identity of a call, with None for unknown fields.

    `told` has the body's fields of `BODY_FIELDS`.

    Raises:
        InvalidRequest: An `X-Kairos-*` header is malformed.
    """
    identity = declared_identity(headers)
    aliases.add(identity, headers, caller.tenant)
    if told:
        aliases.add_from_body(identity, told)
    for field, value in route.items():
        identity.learn(field, value, "route")
    if caller.app is not None:  # its key is for that one alone, whatever else is said
        identity.app, identity.sources["app"] = caller.app, "route"
    add_traced(identity, headers)
    return identity
