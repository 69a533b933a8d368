"""What a trust policy judges: the code in a package, and the names in its pickles."""
