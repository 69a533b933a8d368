"""A model, hooks of every shape, and what they do: what the matrix of hooks packages."""
