"""Facts about a request before it is queued: its caller, its body, its budget."""
