"""One call of all ranks: what is sent to them, runs there, and comes back."""
