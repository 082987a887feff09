"""`workshop examine`: somebody's own PyTorch script on several ranks, watched from outside.

`on_ranks` runs in each rank beside the script and writes down what PyTorch does. `run` starts the ranks, bounds them
and reads what they wrote. Each function in `checks` compares the ranks and returns findings.
"""
