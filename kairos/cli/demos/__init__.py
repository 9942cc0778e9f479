"""The demo: engines, applications and Kairos, started together by one command."""
