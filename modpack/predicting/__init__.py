"""Loaded objects that are called with named values, one call at a time or several together."""
