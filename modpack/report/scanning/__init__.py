"""What a package could do to whoever loads it, found by reading."""
