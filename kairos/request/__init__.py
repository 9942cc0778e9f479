"""What is known of a request before it waits: who calls, what it asks for, what it may use."""
