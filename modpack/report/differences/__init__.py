"""How two packages differ: read, never run."""
