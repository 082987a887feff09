"""What a process finds out about where it runs, and the machines that forecasts know. Imports no other room."""
