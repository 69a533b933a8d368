"""The trial run, as the clean interpreter sees it, and repeating a stored one.

:mod:`modpack.replaying.child` is what that interpreter starts with. Loading a package runs the code
in it: repeat the trials of packages that you trust.
"""
