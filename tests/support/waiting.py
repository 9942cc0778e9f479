"""Wait for facts that nothing announces, and keep what a waiting call is told."""

import asyncio

LIMIT_S = 60


async def until(condition):
    """Return once it holds."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.01)


class Told:
    """A call that waits for its turn."""

    def __init__(self):
        self.said = []  # the instance to go to, or the code of the error and whether it ran

    def go(self, dispatch):
        self.said.append(dispatch.instance_id)

    def give_up(self, error, *, runs):
        self.said.append((error.code, runs))
