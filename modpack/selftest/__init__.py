"""The self-test of a package: the exporting process, and the clean interpreter that it starts."""
