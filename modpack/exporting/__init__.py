"""The exporting side: rules and match hooks over the walk, and what goes into the archive."""
