"""From run records to tables and curves: what was measured, where, and how it scales."""
