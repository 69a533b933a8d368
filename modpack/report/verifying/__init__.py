"""Whether a package is whole, consistent, and what the loader allows."""
