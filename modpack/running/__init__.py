"""A package run on data: inputs, batches, outputs, and isolated environments."""
