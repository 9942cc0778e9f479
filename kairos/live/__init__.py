"""The live body: asyncio, HTTP and real engines around the core."""
