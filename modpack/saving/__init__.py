"""Objects to bytes: the pickler, its reducers, and the tensors that are saved next to pickles.

The counterpart of :mod:`modpack.pickling`, which has the functions that the pickles call. The C
pickler does the work; Python code runs once per type, not once per object.
"""
