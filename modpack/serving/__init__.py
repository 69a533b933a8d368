"""A package behind HTTP, apart from the web framework: queue, workers, protocol."""
