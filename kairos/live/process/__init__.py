"""What a process sets for itself: its clock, its event loop's turns, its garbage collection."""
