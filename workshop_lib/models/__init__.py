"""The one network of the workshop."""
