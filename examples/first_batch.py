"""A first batch, with OpenAI's own client: `python examples/first_batch.py URL MODEL [COUNT]`.

It asks for a colour for each of some numbers, and prints what came. Nothing in it is Kairos's: any
server that has OpenAI's Batch API runs it.
"""

import json
import sys
import time
from typing import Literal

import openai

CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"


def line(number: int, model: str) -> str:
    """A call of the batch. `custom_id` is ours: the answers carry it."""
    messages = [{"role": "user", "content": f"Name a colour that goes with the number {number}."}]
    body = {"model": model, "messages": messages, "max_tokens": 16}
    return json.dumps(
        {"custom_id": f"colour-{number}", "method": "POST", "url": CHAT, "body": body}
    )


def run(url: str, model: str, count: int) -> None:
    # Whoever serves it may be started again meanwhile.
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none is needed here", max_retries=20)
    content = "\n".join(line(number, model) for number in range(count)).encode()
    file = client.files.create(file=("colours.jsonl", content), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"first": "yes"}
    )
    while batch.status in ("validating", "in_progress", "finalizing"):
        time.sleep(0.5)
        batch = client.batches.retrieve(batch.id)
        counts = batch.request_counts
        if counts is not None:
            print(f"{batch.status}: {counts.completed} of {counts.total}", flush=True)
    if batch.output_file_id is None:
        sys.exit(f"it ended as {batch.status}: {batch.errors}")
    for answer in map(json.loads, client.files.content(batch.output_file_id).text.splitlines()):
        said = answer["response"]["body"]["choices"][0]["message"]["content"]
        print(answer["custom_id"], "|", " ".join(said.split())[:80])


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 20)
