"""What is in a package or a plan, who needs it, and whether it will hurt."""
