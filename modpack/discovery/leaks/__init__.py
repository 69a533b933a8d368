"""Texts that look like secrets: keys, tokens, passwords, in what is about to be packaged."""
