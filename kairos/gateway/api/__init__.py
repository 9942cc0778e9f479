"""HTTP routes for clients: calls, models, views of workflows and agents, declared plans."""
