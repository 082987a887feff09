"""The networks of the workshop."""
