"""Objects to bytes and back: pickles whose tensors live beside them as storages.

The pickles have the shape of torch.package's (same protocol, same persistent ids), so that
each side reads the other's. The C pickler does the work; Python code runs once per type, not
once per object.
"""
