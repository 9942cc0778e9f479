"""The attacks that are measured: the bytes of each, and the route that it takes."""

import threading
import zlib
from collections.abc import Callable
from itertools import pairwise

import msgspec

from tests.attacks.flood import MODEL

_MB = 1_000_000
LARGE = 29 * _MB  # bytes; the usual bound of a body is 32 MiB
CHAT, TEXT, VECTORS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


class Attack(msgspec.Struct, frozen=True):
    """An attack on a gateway.

    `run`: attack it, and return the answer's status; `own_bytes`: the size of the request or
    stream; `prepare`: a step before anything is measured.
    """

    what: str
    own_bytes: int
    run: Callable
    prepare: Callable | None = None


class _Made(msgspec.Struct, frozen=True):
    """A text of one size: the item again and again between a beginning and an end.

    A `%d` in the item becomes its number.
    """

    before: bytes
    item: bytes
    after: bytes
    between: bytes = b","
    size: int = LARGE

    def text(self):
        count = self.size // (len(self.item) + len(self.between))
        if b"%d" in self.item:
            items = [self.item % number for number in range(count * 2 // 3)]
        else:
            items = [self.item] * count
        return self.before + self.between.join(items) + self.after


def _asks(path, made):
    """Send such a body; its first member is the model."""

    def run(gateway):
        return gateway.post(path, b'{"model":"%b",' % MODEL.encode() + made.text())[0]

    return run


def _chat(content):
    return b'"max_tokens":1,"messages":[{"role":"user","content":' + content


_TINY = _chat(b'"hi"}]')
_END = b"}]}"
_PART = b'[{"type":"text","text":"'
_SOUND = _chat(b'[{"type":"input_audio","input_audio":{"format":"wav","data":"')
_IMAGE = _chat(b'[{"type":"image_url","image_url":{"url":"data:image/png;base64,')
_BASE64 = b"QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU2Nzg5"  # what a recording looks like
_MARK, _BILLED = b',"cache_control":{', b'{"type":"text","text":"x-anthropic-billing-header: a"}'
_BROKEN = b'{"data":"' + b"A" * 1000 + b'!"}'
_MARKED = b'","cache_control":{"type":"ephemeral"}}]' + _END

_MEDIA = (
    ("input_audio of 29 MB", _Made(_SOUND, _BASE64, b'"}}]' + _END, b"")),
    ("input_audio of 15 MB", _Made(_SOUND, _BASE64, b'"}}]' + _END, b"", 15 * _MB)),
    ("an image as a data URL", _Made(_IMAGE, _BASE64, b'"}}]' + _END, b"")),
    ("base64 in lines, as a text", _Made(_chat(b'"'), _BASE64 + b"\\n", b'"' + _END, b"")),
    ("base64 as a text", _Made(_chat(b'"'), _BASE64, b'"' + _END, b"")),
    ("base64 that ends wrongly", _Made(_SOUND, _BASE64, b'!"}}]' + _END, b"")),
    ("base64 that is broken off", _Made(_TINY + b',"x":[', _BROKEN, b"]}")),
    ("data URLs without an end", _Made(_chat(b'"'), b"data:a;base64,", b'"' + _END, b"")),
    ("quotes that are escaped", _Made(_chat(b'"'), b'\\"', b'"' + _END, b"")),
    ("backslashes", _Made(_chat(b'"'), b"\\\\", b'"' + _END, b"")),
    ("marks for caches", _Made(_chat(b'[{"type":"text","text":"a"'), _MARK, b"}" * 9, b"")),
    ("marks for caches that end", _Made(_chat(_PART + b'a"'), _MARK + b"}", b"}]" + _END, b"")),
    ("one text with a mark", _Made(_chat(_PART), b"a\\n", _MARKED, b"")),
    ("lists without a mark", _Made(_chat(b'"cache_control"}],"x":['), _PART + b'a"}]', b"]}")),
)  # fmt: skip

_PAIR, _NUMBERED = b'"a":1', b'"a%d":1'
_ROLE = b'{"role":"user","content":"a"}'
_SMALL = b'{"type":"text","text":"a"}'
_LARGE_STOP = b'"stop":[' + b",".join([b'""'] * 250) + b"]"
_OPTIONS = _TINY + b',"stream":true,"stream_options":{'

_BODIES = (
    ("parts [{},{},...]", CHAT, _Made(_chat(b"["), b"{}", b"]" + _END)),
    ("parts of small texts", CHAT, _Made(_chat(b"["), _SMALL, b"]" + _END)),
    ('parts ["","",...]', CHAT, _Made(_chat(b"["), b'""', b"]" + _END)),
    ("messages [{},{},...]", CHAT, _Made(b'"messages":[', b"{}", b"]}")),
    ("messages that are right", CHAT, _Made(b'"messages":[', _ROLE, b"]}")),
    ("messages [[],[],...]", CHAT, _Made(b'"messages":[', b"[]", b"]}")),
    ("a message of many members", CHAT, _Made(b'"messages":[{"role":"user",', _PAIR, _END)),
    ("tools [{},{},...]", CHAT, _Made(_TINY + b',"tools":[', b"{}", b"]}")),
    ("a tool of many members", CHAT, _Made(_TINY + b',"tools":[{', b'"a":{}', _END)),
    ("logit_bias, an object", CHAT, _Made(_TINY + b',"logit_bias":{', b'"%d":1', b"}}")),
    ("logit_bias, a list", CHAT, _Made(_TINY + b',"logit_bias":[', b"[]", b"]}")),
    ("stop", CHAT, _Made(_TINY + b',"stop":[', b'""', b"]}")),
    ("stop_token_ids", CHAT, _Made(_TINY + b',"stop_token_ids":[', b"1", b"]}")),
    ("allowed_token_ids", CHAT, _Made(_TINY + b',"allowed_token_ids":[', b"1", b"]}")),
    (
        "allowed_token_ids, nearly too many",
        CHAT,
        _Made(_TINY + b',"allowed_token_ids":[', b"100000", b"]}", size=7_300_000),
    ),
    ("prompts", TEXT, _Made(b'"prompt":[', b'""', b"]}")),
    ("prompts of lists", TEXT, _Made(b'"prompt":[', b"[]", b"]}")),
    ("token ids", TEXT, _Made(b'"prompt":[', b"1", b"]}")),
    ("token ids, wrong at the end", TEXT, _Made(b'"prompt":[', b"1", b",-1]}")),
    ("token ids in lists", TEXT, _Made(b'"prompt":[[', b"1", b"],[1.5]]}")),
    ("inputs to embed", VECTORS, _Made(b'"input":[', b'""', b"]}")),
    ("inputs to embed, lists", VECTORS, _Made(b'"input":[', b"[1]", b"]}")),
    ("inputs to embed, ids", VECTORS, _Made(b'"input":[', b"1", b",-1]}")),
    ("items of a response", RESPONSES, _Made(b'"input":[', b"{}", b"]}")),
    ("parts of Anthropic's", MESSAGES, _Made(_chat(b"["), b"{}", b"]" + _END)),
    ("system of Anthropic's", MESSAGES, _Made(_TINY + b',"system":[', b"{}", b"]}")),
    ("system of billing lines", MESSAGES, _Made(_TINY + b',"system":[', _BILLED, b"]}")),
    ("members that nobody knows", CHAT, _Made(_TINY + b",", _NUMBERED, b"}")),
    ("the same member again", CHAT, _Made(_TINY + b",", b'"seed":1', b"}")),
    ("the same large member again", CHAT, _Made(_TINY + b",", _LARGE_STOP, b"}")),
    ("priority, and many members", CHAT, _Made(_TINY + b',"priority":1,', _NUMBERED, b"}")),
    ("stream_options of many members", CHAT, _Made(_OPTIONS, _NUMBERED, b"}}")),
    (
        "stream_options everywhere",
        CHAT,
        _Made(_OPTIONS + b'},"x":[', b'{"stream_options":1}', b"]}"),
    ),
    ("metadata of many members", CHAT, _Made(_TINY + b',"metadata":{', _NUMBERED, b"}}")),
    ("nested as deep as may be", CHAT, _Made(_TINY + b',"x":[', b"[" * 60 + b"]" * 60, b"]}")),
    ("nested without an end", CHAT, _Made(_TINY + b',"x":', b"[", b"", b"")),
    ("no JSON at the end", CHAT, _Made(_chat(b"["), b"{}", b"]")),
    ("no UTF-8 at the end", CHAT, _Made(_chat(b'"'), b"word ", b'\xff"' + _END, b"")),
    ("a text of other letters", CHAT, _Made(_chat(b'"'), "Καιρός ".encode(), b'"' + _END, b"")),
    ("a text of escapes", CHAT, _Made(_chat(b'"'), b"\\u039a", b'"' + _END, b"")),
    ("a plain text", CHAT, _Made(_chat(b'"'), b"word ", b'"' + _END, b"")),
    ("a plain text to embed", VECTORS, _Made(b'"input":"', b"word ", b'"}', b"")),
    ("a number of many digits", CHAT, _Made(_TINY + b',"seed":', b"1", b"}", b"")),
    ("a fraction of many digits", CHAT, _Made(_TINY + b',"temperature":0.', b"1", b"}", b"")),
    ("a model of a long name", CHAT, _Made(_TINY + b',"model":"', b"a", b'"}', b"")),
    ("a role of a long name", CHAT, _Made(b'"messages":[{"role":"', b"a", b'"}]}', b"")),
    ("nothing but space", CHAT, _Made(_TINY, b" ", b"}", b"")),
    ("documents to rank", "/v1/rerank", _Made(b'"query":"a","documents":[', b'""', b"]}")),
    ("an unknown route", "/v1/unknown", _Made(b'"x":[', b"{}", b"]}")),
)


def _media():
    for what, made in _MEDIA:
        yield Attack(what, made.size, _asks(CHAT, made))


def _bodies():
    for what, path, made in _BODIES:
        yield Attack(what, made.size, _asks(path, made))
    yield Attack("parts, packed by gzip", LARGE, _packed)
    yield Attack("a body in chunks of a byte", LARGE, _chunked)


def _packed(gateway):
    packed = zlib.compressobj(9, wbits=31)
    whole = b'{"model":"tiny",' + _Made(_chat(b"["), b"{}", b"]" + _END).text()
    small = packed.compress(whole) + packed.flush()
    return gateway.post(CHAT, small, more=["Content-Encoding: gzip"])[0]


def _chunked(gateway):
    body = b"1\r\n{\r\n" + b"1\r\n \r\n" * (LARGE // 6) + b"1\r\n}\r\n0\r\n\r\n"
    return gateway.post(CHAT, body, length=None, more=["Transfer-Encoding: chunked"])[0]


_BOUNDARY = "----x"
_FORM = f"multipart/form-data; boundary={_BOUNDARY}"
_FIELD = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n'.encode()
_FILE = _FIELD % (b"file", b'; filename="a.jsonl"')
_LINE = b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{}}\n'
_FORM_END = f"\r\n--{_BOUNDARY}--\r\n".encode()
_PURPOSE = _FIELD % (b"purpose", b"") + b"batch\r\n"

_UPLOADS = (
    ("a form of many fields", _Made(b"", _FIELD % (b"a", b"") + b"1\r\n", _FORM_END, b"")),
    ("a form of line ends", _Made(_FILE, b"\r\n-", _FORM_END, b"")),
    ("a form of one long head", _Made(b"", b"--" + _BOUNDARY.encode() + b"\r\na:", b"", b"")),
)


def _uploads():
    for what, made in _UPLOADS:
        run = _sends("/v1/audio/transcriptions", made)
        yield Attack(what, made.size, run)
    lines = _Made(_PURPOSE + _FILE, _LINE, _FORM_END, b"")
    yield Attack("a file of lines for a batch", LARGE, _sends("/v1/files", lines))


def _sends(path, made):
    return lambda gateway: gateway.post(path, made.text(), kind=_FORM)[0]


_HEAD = "flow: put\noperators:\n  row: {kind: input}\n"
_ASK = '  said: {kind: llm, prompt: "Say %s", max_tokens: 1, on_cut: keep}\n'
_SAID = "outputs: {said: said}\n"
_ECHO = _HEAD + _ASK % "{{ row.text }}" + _SAID
_INPUTS = (
    ("inputs that nobody uses", _Made(b'{"inputs":{"text":"a","b":[', b"{}", b"]}}")),
    ("inputs of many columns", _Made(b'{"inputs":{"text":"a",', _NUMBERED, b"}}")),
    ("an input that is used", _Made(b'{"inputs":{"text":[', b"{}", b"]}}")),
    ("a large text as an input", _Made(b'{"inputs":{"text":"', b"word ", b'"}}', b"")),
    ("settings of many members", _Made(b'{"inputs":{"text":"a"},"settings":{', _NUMBERED, b"}}")),
)
_TEMPLATES = (
    ("is even, of a format", "{{ '%2000000000d' is even }}"),
    ("a text times a number", "{{ 'aaaaaaaa' * 1000000000 }}"),
    ("a power of powers", "{{ 9 ** 9 ** 9 }}"),
    (
        "a loop in a loop",
        "{% for a in row.text %}{% for b in row.text %}a{% endfor %}{% endfor %}",
    ),
    ("a list of lists", "{{ [[1] * 1000000] * 1000000 }}"),
)
_LETTERS = "abcdefghijklm"
_SOURCES = (
    ("one output of many", _HEAD + _ASK % "a" + "outputs:\n  all:\n" + "    - {a: b}\n" * 18_000),
    (
        "anchors within each other",
        _HEAD
        + "outputs:\n  a: &a [row.x]\n"
        + "".join(
            f"  {name}: &{name} [{', '.join([f'*{before}'] * 8)}]\n"
            for before, name in pairwise(_LETTERS)
        ),
    ),
    (
        "5,500 operators",
        _HEAD + "".join(f'  a{n}: {{kind: llm, prompt: "a"}}\n' for n in range(5_500)) + _SAID,
    ),
    ("nested", _HEAD + "outputs: " + "[" * 200_000),
)  # fmt: skip


_FLOW_CHAT = b'{"model":"flow/put","messages":[{"role":"user","content":"a"'
_CHATS = (
    ("a chat with a flow: parts", _Made(_FLOW_CHAT + b',"content":[', b"{}", b"]" + _END)),
    ("a chat with a flow: members", _Made(_FLOW_CHAT + b',"x":[', b"{}", b"]" + _END)),
    ("a chat with a flow: inputs", _Made(_FLOW_CHAT + b'}],"inputs":{', _NUMBERED, b"}}")),
)


def _flows():
    for what, made in _CHATS:
        yield Attack(what, made.size, _sends_json(made), _puts_echo)
    for what, made in _INPUTS:
        yield Attack(what, made.size, _invokes(made), _puts_echo)
    for what, template in _TEMPLATES:
        source = _HEAD + _ASK % template + _SAID
        yield Attack(f"a template: {what}", len(source), _puts_and_invokes(source), _puts_echo)
    for what, source in _SOURCES:
        yield Attack(f"a flow: {what}", len(source), _puts_and_invokes(source), _puts_echo)


def _sends_json(made):
    return lambda gateway: gateway.post(CHAT, made.text())[0]


def _put(gateway, source):
    path, body = "/v1/flows/put", source.encode()
    return gateway.post(path, body, method="PUT", kind="application/yaml")[0]


def _puts_echo(gateway):
    """Have the gateway load all that flows need, so that it counts for no attack."""
    _put(gateway, _ECHO)
    gateway.post("/v1/flows/put/invoke", b'{"inputs":{"text":"a"}}')


def _invokes(made):
    return lambda gateway: gateway.post("/v1/flows/put/invoke", made.text())[0]


def _puts_and_invokes(source):
    def run(gateway):
        body = b'{"inputs":{"text":"%b"}}' % (b"a" * 10_000)
        return f"{_put(gateway, source)} {gateway.post('/v1/flows/put/invoke', body)[0]}"

    return run


_STREAMED = 64 * _MB


def _streams():
    for kind in ("tokens", "empty", "comments", "ends", "words", "carriage", "long", "chunks"):
        yield Attack(f"a stream: {kind}", _STREAMED, _streamed(kind))
    yield Attack("four streams: tokens", 4 * _STREAMED, _at_once(4, _streamed("tokens")))
    yield Attack("an answer that never ends", _STREAMED, _streamed("tokens", VECTORS, "false"))


def _streamed(kind, path=CHAT, stream="true"):
    prompt = f'"flood {kind} of {_STREAMED}"'
    body = f'{{"model":"{MODEL}","stream":{stream},'.encode() + _chat(prompt.encode()) + _END
    return lambda gateway: " ".join(map(str, gateway.post(path, body)))


def _at_once(count, run):
    def run_all(gateway):
        said = [""] * count

        def run_one(number):
            said[number] = run(gateway)

        threads = [threading.Thread(target=run_one, args=(number,)) for number in range(count)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return ", ".join(said)

    return run_all


KINDS = {
    "media": _media,
    "bodies": _bodies,
    "uploads": _uploads,
    "flows": _flows,
    "streams": _streams,
}
