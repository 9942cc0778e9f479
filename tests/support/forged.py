"""Records of the bus as somebody forges them: genuine ones, spoilt in one place or several."""

import copy

import msgspec

NUMBERS = (-1, 0, 1, 2**31, 2**53, 2**63, 2**64, 10**18, 10**30, -(10**30), 1e308, 0.5, -0.0)
TEXTS = ("", "x", "os:system", "a\n b", "\x00", "x" * 300, "default", "e0", "p0", "1e9")
OTHERS = (None, True, [], {}, [[]], {"type": "Tick"}, [{"type": "Refuse"}])
HEADERS = ("", "x", "-1", "0", "1", "99", "10", str(10**17), str(10**40), "1_0", "p0", "pool", "\n")
NAMES = ("kairos-cause", "kairos-turn", "kairos-epoch", "kairos-redo")


def forge(draw, message):
    """Spoil a message. `draw`: a `random.Random`."""
    kind = draw.random()
    headers, value = dict(message.headers), message.value
    if kind < 0.25 and headers:
        name = draw.choice([*headers, *NAMES])
        if draw.random() < 0.2:
            headers.pop(name, None)
        else:
            headers[name] = draw.choice(HEADERS)
    elif kind < 0.9 and value:
        value = _spoil_json(draw, value)
    else:
        value = _spoil_bytes(draw, value or b"")
    return msgspec.structs.replace(message, headers=headers, value=value)


def _spoil_json(draw, value):
    try:
        tree = msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        places = list(_places(tree))
        if not places:
            break
        within, at = draw.choice(places)
        if isinstance(within, dict) and draw.random() < 0.1:
            del within[at]
        elif isinstance(within[at], str) and draw.random() < 0.7:
            within[at] = draw.choice(TEXTS)
        elif isinstance(within[at], list) and draw.random() < 0.3:
            within[at] = within[at] * draw.choice((2, 1_000))
        else:
            within[at] = copy.deepcopy(draw.choice((*NUMBERS, *NUMBERS, *TEXTS, *OTHERS)))
    return msgspec.json.encode(tree)


def _places(tree):
    if isinstance(tree, dict | list):
        for at, each in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield tree, at
            yield from _places(each)


def _spoil_bytes(draw, value):
    kind = draw.randrange(4)
    if kind == 0:
        return draw.choice((None, b"", b"\xff\xfe", b"null", b"[" * 50_000, b"{}", b"0"))
    if kind == 1:
        return value[: draw.randrange(len(value) + 1)]
    spoilt = bytearray(value or b"x")
    for _ in range(draw.randrange(1, 4)):
        spoilt[draw.randrange(len(spoilt))] = draw.randrange(256)
    return bytes(spoilt)
