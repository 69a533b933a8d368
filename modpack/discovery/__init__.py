"""Gathering evidence: what sources import, and where that leads. Executes nothing."""
