"""First half of a call to a prefill/decode pair: the prompt, on a prefill instance.

As in vLLM's disaggregated prefill (its NixlConnector, and others with the same parameters): the
prefill instance is sent a request for one token, whose `kv_transfer_params` say that the cache will
be fetched. Its answer has `kv_transfer_params` that say where the cache is; with these the client's
own request goes to the decode instance, which fetches the cache.

If anything fails here, the decode instance computes the prompt itself: the call is late, not lost.
"""

from collections.abc import Callable

import msgspec

from kairos.core import Dispatch, UpstreamUnreachable
from kairos.proxy.asked import Asked
from kairos.proxy.engine_answer import EngineAnswer, EngineRefused, NothingCame
from kairos.proxy.engine_client import EngineClient

PAIRED_ROUTES = {"/v1/chat/completions", "/v1/completions"}  # that take `kv_transfer_params`
MAX_ANSWER_BYTES = 1 << 20  # of one token, and the numbers of its prompt's blocks

_PARAMS = "kv_transfer_params"
# `msgspec.Raw`: what is not looked at stays as the client wrote it.
_Fields = dict[str, msgspec.Raw]
_WANTED_ELSEWHERE = msgspec.Raw(
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
# Of the client's request: what asks for more than the one token.
_LEFT_OUT = "stream_options", "min_tokens", "prompt_logprobs", "echo"
_ONE = msgspec.Raw(b"1")


class _PrefillAnswer(msgspec.Struct):
    kv_transfer_params: dict[str, msgspec.Raw] | None = None


def prefill_body(content: bytes) -> bytes:
    """Return the body for the prefill instance.

    Raises:
        ValueError: The content is not a JSON object.
    """
    fields = msgspec.json.decode(content, type=_Fields)
    for name in _LEFT_OUT:
        fields.pop(name, None)
    fields |= {"stream": msgspec.Raw(b"false"), "max_tokens": _ONE, _PARAMS: _WANTED_ELSEWHERE}
    if "max_completion_tokens" in fields:
        fields["max_completion_tokens"] = _ONE
    return msgspec.json.encode(fields)


def decode_body(content: bytes, params: dict[str, msgspec.Raw]) -> bytes:
    """Return the body for the decode instance.

    Raises:
        ValueError: The content is not a JSON object.
    """
    fields = msgspec.json.decode(content, type=_Fields)
    fields[_PARAMS] = msgspec.Raw(msgspec.json.encode(params))
    return msgspec.json.encode(fields)


OnPrefilled = Callable[[Dispatch, bytes, UpstreamUnreachable | None], None]


class PrefillHop:
    """`AnswerTaker` of the prefill instance, which yields the body for the decode instance."""

    def __init__(self, instance_id: str, dispatch: Dispatch, content: bytes, then: OnPrefilled):
        """Create it. `content` is the client's request.

        `then` is called once with the body to continue with, which may have the cache's place, and
        the trouble to report.
        """
        self._id, self._dispatch, self._content, self._then = instance_id, dispatch, content, then
        self._awaited: EngineAnswer | None = None
        self._status = 0
        self._answer = bytearray()

    def send(self, asked: Asked, client: EngineClient) -> EngineAnswer:
        """Send the request with a stream's time limit: a prompt takes no longer than that."""
        body = prefill_body(self._content)
        answer = client.send_call(self._dispatch, asked, body, self, streams=True, to=self._id)
        self._awaited = answer
        return answer

    def begun(self, answer: EngineAnswer) -> None:
        answer.progressed()
        self._status = answer.status

    def came(self, data: bytes) -> None:
        """See `AnswerTaker`. An answer that is too long is ignored."""
        if len(self._answer) <= MAX_ANSWER_BYTES:
            self._answer += data

    def ended(self) -> None:
        trouble = None
        try:
            params = self._params()
        except ValueError:  # msgspec's errors among them
            params, trouble = None, UpstreamUnreachable(self._id, "no kv_transfer_params")
        content = self._content if params is None else decode_body(self._content, params)
        self._then(self._dispatch, content, trouble)

    def _params(self) -> dict[str, msgspec.Raw] | None:
        """Return the parameters; None if the call was refused, as the decode instance may do, too.

        Raises:
            ValueError: The answer has none.
        """
        if 400 <= self._status < 500:
            return None
        if self._status != 200 or len(self._answer) > MAX_ANSWER_BYTES:
            raise ValueError("no answer")
        found = msgspec.json.decode(self._answer, type=_PrefillAnswer).kv_transfer_params
        if not found:
            raise ValueError("none")
        return found

    def broke(self, error: Exception) -> None:
        refused = isinstance(error, EngineRefused)
        trouble = UpstreamUnreachable(self._id, type(error).__name__, refused=refused)
        self._then(self._dispatch, self._content, trouble)

    def stalled(self) -> None:
        """Fail the hop: the prefill instance has lost the call."""
        if self._awaited is not None:
            self._awaited.close()
        self.broke(NothingCame())


def hop_of(
    dispatch: Dispatch, asked: Asked, content: bytes, client: EngineClient, then: OnPrefilled
) -> PrefillHop | None:
    """Return a hop, or None if the decode instance must compute the whole call.

    That is so on routes that engines do not split, and if this process does not know the prefill
    instance.
    """
    instance_id = dispatch.prefill_id
    if instance_id not in client.upstreams or asked.path not in PAIRED_ROUTES:
        return None
    assert instance_id is not None
    return PrefillHop(instance_id, dispatch, content, then)
