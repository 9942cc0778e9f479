"""Order in which requests are served."""
