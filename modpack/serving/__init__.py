"""A package behind HTTP, apart from the HTTP server: application, queue, workers, protocol."""
