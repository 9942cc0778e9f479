"""Parts of what is fuzzed: headers, an empty line, and the rest."""


def head_of(data: bytes) -> tuple[bytes, bytes]:
    head, _, rest = data.partition(b"\n\n")
    return head, rest


def pairs_of(lines: bytes) -> list[tuple[bytes, bytes]]:
    parts = (line.partition(b":") for line in lines.split(b"\n"))
    return [(name.strip(), value.strip()) for name, colon, value in parts if colon]
