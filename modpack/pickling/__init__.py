"""Unpickling: pickles whose tensors are saved next to them as storages.

The pickles have the shape of torch.package's (same protocol, same persistent ids), so modpack and
torch.package can read each other's. The C unpickler does the work. The functions that pickles call
are here, too; :mod:`modpack.saving` writes pickles.
"""
