"""What packaged code does with the names of mocked modules: read off sources, never run."""
