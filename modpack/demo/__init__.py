"""The demo: train and package a small model, test it, and reload it without its project."""
