"""What the core finds through the entry points."""
