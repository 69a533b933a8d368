"""The loading side: packaged code as real files, imported by Python's own machinery.

A package's code is unpacked once into a cache folder and imported from there, under a
private parent package or under its real names. Nothing here reads archives or pickles.
"""
