"""What may be trusted: which names are data, what pickles name, which records are code."""
