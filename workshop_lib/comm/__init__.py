"""Communication written by hand, and what counts it. Runs on every rank."""
