"""The export: rules and match hooks applied to the walk, and the contents of the archive."""
