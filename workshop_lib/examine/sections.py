"""The sections of notebooks that findings refer to, each by a short name."""

# Notebook and heading; an exercise's number and label aren't part of it.
SECTIONS = {
    "averaging": ("02_synchronous_sgd", "average the gradients"),
    "same start": ("02_synchronous_sgd", "The same start"),
    "equal": ("02_synchronous_sgd", "Equal, to the last bit"),
    "unequal": ("02_synchronous_sgd", "Deeper: unequal shards"),
    "norms": ("02_synchronous_sgd", "Deeper: what batch normalization changes"),
    "resume": ("03_horovod_pytorch", "Deeper: continue from a checkpoint"),
    "metric": ("01_mpi_basics", "Deeper: the mean of all values"),
    "processes": ("05_ddp", "How do processes find each other?"),
    "convert": ("05_ddp", "the script for many processes"),
    "ddp": ("05_ddp", "What DDP doesn't do"),
    "accumulate": ("05_ddp", "When a batch doesn't fit"),
    "sampler": ("05_ddp", "Who sees which sample?"),
    "branches": ("05_ddp", "Deeper: when ranks take different branches"),
    "fsdp": ("06_zero_and_fsdp", "FSDP: stage 3 in PyTorch"),
    "sharded file": ("06c_fitting_more", "Checkpoints in shards"),
    "rate": ("07_large_batch", "How long should a step be?"),
    "straggler": ("08b_where_the_time_goes", "A straggler"),
    "inside": ("08b_where_the_time_goes", "Deeper: inside a step"),
    "random": ("09_feeding_the_ranks", "Deeper: different random numbers on every rank"),
    "threads": ("10_compute_nodes", "Threads"),
    "devices": ("10_compute_nodes", "A GPU for each rank"),
    "stuck": ("13_when_training_breaks", "Six faults"),
    "save": ("13b_runs_that_survive", "A checkpoint for any moment"),
}
