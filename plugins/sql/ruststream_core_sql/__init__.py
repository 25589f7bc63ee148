"""Tables of SQL databases as a transport of RustStream, and an outbox and inbox over any broker."""
