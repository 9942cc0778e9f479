"""What a process has of its machine: clock, event loop, threads, files, SQLite, child processes."""
