"""The server: one engine thread, many clients."""
