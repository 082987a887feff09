"""Run records and what they say about scaling."""
