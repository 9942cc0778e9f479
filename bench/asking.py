"""What a running Kairos says of itself."""

from bench import talk
from bench.load import Client


async def told(client: Client, name: str) -> list[float]:
    """The figures under this name in its /metrics."""
    text = (await client.send(talk.http(b"GET", b"/metrics"))).decode()
    lines = [line.split() for line in text.splitlines()]
    return [float(words[-1]) for words in lines if words and words[0].split("{")[0] == name]
