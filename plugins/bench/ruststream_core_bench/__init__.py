"""Measures what RustStream costs over the client library's own loop."""
