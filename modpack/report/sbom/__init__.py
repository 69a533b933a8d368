"""The software bill of materials of a package: first as values, then in CycloneDX."""
