"""Why a module is in a package: chains of imports, as values, text and JSON."""
