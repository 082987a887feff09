"""What only 15_your_own_script uses, and its exercises."""
