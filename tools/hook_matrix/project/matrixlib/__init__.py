"""The packaged code of the hook matrix: a model, and hooks of every form."""
