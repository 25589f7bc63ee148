"""Stream files and stdio as a transport of RustStream."""
