"""Carrying out a plan: objects, sources and records go into the archive."""
