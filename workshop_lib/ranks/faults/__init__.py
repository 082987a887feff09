"""What can go wrong on ranks: how it's noticed, and in which words it's told."""
