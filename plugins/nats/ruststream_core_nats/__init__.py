"""NATS as a transport of RustStream."""
