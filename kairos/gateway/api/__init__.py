"""What Kairos serves over HTTP: calls, views, operators' routes."""
