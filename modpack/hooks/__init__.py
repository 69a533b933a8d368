"""Model hooks: found on a live model, described as specs, registered again after loading."""
