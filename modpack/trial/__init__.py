"""The trial run, as the exporting process sees it: a package must prove that it loads and computes.

The live model is run once on example inputs; then an interpreter that cannot see what the package
interns loads the package, runs it on the same inputs, and must come to the same output. What it
asks for and does not find is added, if the rules would take it, until it passes or the reason is
known. The other half, which runs in that interpreter, is :mod:`modpack.replaying`.
"""
