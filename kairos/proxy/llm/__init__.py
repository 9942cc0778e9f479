"""Calls of Kairos' own programs to a server that speaks OpenAI's protocol, as its client."""
