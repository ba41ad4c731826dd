"""The double's package; its version is a real one."""

__version__ = "0.32.0"
