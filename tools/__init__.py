"""Tools for maintainers; nothing here is installed."""
