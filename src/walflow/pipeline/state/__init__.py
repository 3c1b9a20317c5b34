"""What a pipeline knows of its tables, remembers, and tells."""
