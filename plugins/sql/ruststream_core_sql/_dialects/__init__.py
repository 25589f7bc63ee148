"""What differs between the databases: one module each for the driver's sessions and for the statements."""
