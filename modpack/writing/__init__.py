"""Writing of package files: records, digests, and signatures appended to finished files.

A file appears under its name when it is complete. No module in this layer imports torch or pickle.
"""
