"""Static discovery of imports, modules, and distributions. Executes no user code."""
