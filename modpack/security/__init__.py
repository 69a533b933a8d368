"""Static security checks: code records, pickled names and hooks, import effects, signatures."""
