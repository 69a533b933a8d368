"""Object serialization: pickles whose tensors are saved next to them as storages.

The pickles have the shape of torch.package's (same protocol, same persistent ids), so modpack and
torch.package can read each other's. The C pickler does the work; Python code runs once per type,
not once per object.
"""
