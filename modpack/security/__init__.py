"""Signatures of packages, and the hooks in pickles, read without execution."""
