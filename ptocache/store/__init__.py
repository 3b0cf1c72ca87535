"""Where device binaries are kept: one small interface, a module a tier."""
