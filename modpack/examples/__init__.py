"""Examples that a package contains: run again, and compared with the recorded output."""
