"""What commands do beside serving: replay, calibrate, traces, export, explain."""
