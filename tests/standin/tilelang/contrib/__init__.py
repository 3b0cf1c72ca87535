"""Nothing: the modules below are imported by their names."""
