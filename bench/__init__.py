"""What the gateway costs, beside the engine alone and beside a peer: `python -m bench.gateway`."""
