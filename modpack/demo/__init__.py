"""The demo: a small model is trained, packaged, and reloaded where its code cannot be imported."""
