"""The loading side: packaged code as real files, and the objects that were saved with it."""
