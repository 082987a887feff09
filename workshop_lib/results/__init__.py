"""From records of runs to tables and curves: what was measured, by whom, and how it scales."""
