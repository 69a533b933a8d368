"""Static security checks: code records, pickled names and hooks, signatures."""
