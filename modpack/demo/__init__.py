"""The demo: train and package a small model, and reload it without its project."""
