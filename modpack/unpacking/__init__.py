"""Taking objects out of an open package."""
