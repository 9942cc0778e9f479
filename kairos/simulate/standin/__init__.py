"""A stand-in for a vLLM server: its HTTP interface, with modelled time and scripted text."""
