# %% [markdown]
# # Compute nodes
#
# **You will** take what ran on your machine to a cluster: read the options with which launchers place ranks on nodes and cores,
# compute them for a job, see on a map where your own ranks may run, give each rank its GPU on any number of nodes, and open
# these notebooks on an allocation in two ways.
#
# **Time** about 30 minutes. **Needs** two cores; no cluster. Inside a job, or attached to one, the same cells show its nodes.

# %%
import time

import torch

from workshop_lib import ranks
from workshop_lib.exercises import compute_nodes as check
from workshop_lib.notebook import profile
from workshop_lib.notebook.figures import pictures
from workshop_lib.notebook.prediction import predict
from workshop_lib.ranks import allocation, launchers
from workshop_lib.training.cores import usable_cores

sizes = profile.current()
found = allocation.find()
print(found or f"no scheduler's job here: this machine, with {usable_cores()} cores")

# %% [markdown]
# ## From a laptop to an allocation
#
# On a laptop you start ranks and they run. A cluster has hundreds of machines, its *nodes*, and many users. You log in to a
# *login node*, where nothing heavy may run, and ask the *scheduler* for nodes. You wait in a *queue*; then you have an
# *allocation*: some nodes for some time, for your *job*. Inside the job a *launcher* starts the ranks on these nodes.
#
# | step | Slurm | PBS | Cobalt, as on Theta |
# |---|---|---|---|
# | submit a script | `sbatch script.sh` | `qsub script.sh` | `qsub script.sh` |
# | a prompt in the job | `salloc` | `qsub -I` | `qsub -I` |
# | your jobs in the queue | `squeue --me` | `qstat -u $USER` | `qstat -u $USER` |
# | when will it start? | `squeue --me --start` | `qstat -T` | not told |
# | end it | `scancel JOB` | `qdel JOB` | `qdel JOB` |
# | launch ranks inside | `srun` | `mpiexec` | `aprun` |
#
# Where is that prompt? `hostname` tells. On some clusters `salloc` leaves it on the login node, and on Theta it was on a
# service node: from there the launcher alone reaches the nodes. With Slurm, `srun --pty bash` takes you to one.
#
# In a queue, look at the state and at the reason. In Slurm `PD` is waiting, `R` running, `CG` ending. The reason `Resources`
# means that you are next, as soon as nodes are free; `Priority`, that others come before; one that begins with `QOS` or
# `Assoc`, that you have used up some limit. PBS writes `Q`, `R` and `E`, and the reason in `qstat -f`. A shorter job, or a
# smaller one, often starts sooner, in a gap that a larger one leaves: ask for the time that you need.
#
# How does a program learn what it was given? The scheduler leaves variables in the environment, and files. Here is what the
# library reads from them; these are Slurm's, for four nodes.

# %%
told = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "nid[00012-00014,00020]",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_NTASKS": "16",
    "SLURM_CPUS_PER_TASK": "16",
}
job = allocation.find(told)
print(job.hosts, "with", job.tasks_per_node, "ranks each:", job.ranks(told), "ranks")

# %% [markdown]
# `ranks.start()` without a number fills the allocation that it finds. On a laptop it starts two ranks.
#
# ## What a launcher is told
#
# The workshop from which this one grew ran its first example on Theta, whose nodes had one processor of 64 cores, with up to
# four *hardware threads* a core:
#
# ```bash
# aprun -n 16 -N 4 -d 32 -j 2 -cc depth -e OMP_NUM_THREADS=32 -e KMP_BLOCKTIME=0 python pytorch_mnist.py --device cpu
# ```
#
# | option | says |
# |---|---|
# | `-n 16` | ranks of the whole job |
# | `-N 4` | ranks on each node; so it needs $16 / 4 = 4$ nodes |
# | `-j 2` | how many hardware threads of each core to use; each counts as one CPU, so the node has $64 \cdot 2 = 128$ CPUs |
# | `-d 32` | *depth*: CPUs of each rank; $4 \cdot 32 = 128$, all of them |
# | `-cc depth` | bind each rank to its own `-d` CPUs |
# | `-e NAME=VALUE` | set a variable on all ranks |
#
# Other launchers are told the same in other words. The library keeps them in one table; let it write the command for four nodes
# with four ranks each, and 16 threads a rank.

# %%
for kind, program in {
    "aprun": "aprun",
    "pals": "mpiexec",
    "hydra": "mpiexec",
    "openmpi": "mpirun",
    "srun": "srun",
}.items():
    words = launchers.command(kind, [program], n=16, per_node=4, threads=16, bind="core", hosts=job.hosts)
    print(f"{kind:>8}:", " ".join(words))

# %% [markdown]
# `pals` is the mpiexec of newer Cray machines, such as Polaris and Aurora, `hydra` that of MPICH. In all of them find the same
# four things: how many ranks in all, how many on a node, how many CPUs for each, and whether they are bound. Note that Open MPI
# has no option for the ranks of a node here: it is in the list of hosts.
#
# ## Exercise 1: the options of a job
#
# A job has `nodes` nodes. Each has `cores` cores, of which `threads_per_core` hardware threads are to be used, and
# `ranks_per_node` ranks, which share all its CPUs equally. Return aprun's options as a dictionary `{"n": …, "N": …, "d": …,
# "j": …}` of whole numbers. If the CPUs cannot be shared out evenly, the rest stays idle.


# %%
def aprun_options(nodes, cores, threads_per_core, ranks_per_node):
    # <solution>
    cpus = cores * threads_per_core
    return {
        "n": nodes * ranks_per_node,
        "N": ranks_per_node,
        "d": cpus // ranks_per_node,
        "j": threads_per_core,
    }
    # <stub>
    # # of which is there one number for the job, and of which one for a node, or a rank?
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
team = ranks.start(None if found else sizes.ranks)
check.aprun_options(aprun_options)

# %% [markdown]
# ## Where are the ranks?
#
# Options are what you asked for. Ask the ranks themselves what they got: `team.about()` has each rank's host, and the CPUs on
# which the operating system may run it.

# %%
guess = predict("On how many of this machine's cores may rank 0 run?", low=1, high=usable_cores(), unit="cores")
guess

# %%
free = team.about()
guess.compare(len(free[0]["cores"]))

# %%
pictures.binding(free, "Not bound")

# %% [markdown]
# A panel for each host, a row for each rank, a filled square for each core that it may use. (Squares are what the operating
# system counts as CPUs: where cores have two hardware threads, two squares are one core.) Ranks that are *not bound* may move
# between all cores of their host. That is good where other programs run too, and it is the default here. On a compute node,
# which is yours alone, a rank that moves leaves its caches behind, and with two processors in a node also its memory: there,
# *bind*.

# %%
can_bind = usable_cores() >= sizes.ranks and not team.attached_only
team = ranks.start(team.n, bind="core") if can_bind else team
pictures.binding(team.about(), "Bound to cores" if can_bind else "These ranks cannot be bound from here")

# %% [markdown]
# If they could be bound, no core is filled in two rows now: each rank has its own. Two classic mistakes: two jobs on one node,
# each bound from core 0 on, share cores and take turns; and a rank with 16 threads, bound to one core. A map shows it at once;
# a training is just slow. (If 1 rank has more threads than the one core it is bound to, and more ranks are not bound, a scaling
# curve gets speed-ups above perfect: notebook [08b](08b_where_the_time_goes.ipynb).)
#
# ## Threads
#
# Inside a rank, PyTorch and TensorFlow compute with *threads*. `OMP_NUM_THREADS` says with how many: as many as the rank has
# CPUs, so the same number as `-d`. If it is not set, each rank may start one for every core of the node.
#
# What does that cost? Each rank multiplies matrices, once with as many threads as cores are left for it, then with as many as
# the machine has, all ranks at the same time.

# %%
guess = predict("How many times as long does it take if every rank has threads for all cores?", 0.2, 10, "times")
guess

# %%
team = ranks.start(team.n)


def seconds_of_products(threads):
    """Seconds in which this rank multiplies matrices with so many threads; the best of three."""
    from mpi4py import MPI

    torch.set_num_threads(threads)
    a = torch.ones(384, 384)
    times = []
    for _ in range(3):
        MPI.COMM_WORLD.Barrier()
        began = time.perf_counter()
        for _ in range(40):
            a @ a
        MPI.COMM_WORLD.Barrier()
        times.append(time.perf_counter() - began)
    torch.set_num_threads(1)
    return min(times)


on_a_host = sum(about["host"] == free[0]["host"] for about in free)
cores = len(free[0]["cores"])
shared_s = team.run(seconds_of_products, max(1, cores // on_a_host), show=False)[0]
all_s = team.run(seconds_of_products, cores, show=False)[0]
print(f"threads a rank: {max(1, cores // on_a_host)} took {shared_s:.3f} s, {cores} took {all_s:.3f} s")
guess.compare(all_s / shared_s)

# %% [markdown]
# How much it costs depends on how threads *wait*. A thread that has done its share waits for the others of its rank; if it
# *spins*, it looks again and again and keeps its core busy meanwhile, which nobody else can then compute on. Two settings:
#
# - `KMP_BLOCKTIME=0`, in the command above, is for Intel's and LLVM's OpenMP: milliseconds for which a thread spins before it
#   sleeps. The default was 200.
# - `OMP_WAIT_POLICY=PASSIVE` is the standard's word for the same, in any OpenMP. The library sets it for all ranks.
#
# A third variable is about place, not waiting: `KMP_AFFINITY` binds the threads *inside* a rank. Let either the launcher bind
# or this one: with it, use `-cc none`.
#
# *Try it:* `import os`; what does `os.environ.get("OMP_WAIT_POLICY")` say on the ranks, and what in this notebook?
#
# ## A GPU for each rank
#
# The *global rank* counts through the job, the *local rank* through a node. With two nodes of four GPUs:
#
# | | node a | node b |
# |---|---|---|
# | rank | 0 1 2 3 | 4 5 6 7 |
# | local rank | 0 1 2 3 | 0 1 2 3 |
# | GPU | 0 1 2 3 | 0 1 2 3 |
#
# GPUs are numbered on each node from 0. So `device = rank` works for as long as there is one node, and on two it stops with an
# error, which is the lucky case: `device = rank % 4` goes on, and with another order of ranks two of them share a GPU in
# silence.
#
# ## Exercise 2: which device?
#
# Every rank can know the hosts of all: `hosts = comm.allgather(socket.gethostname())`, a list in rank order. Return the number
# of the GPU for `rank`, such that the ranks of a host have the GPUs 0, 1, 2, … in rank order. Nodes may be filled one after the
# other, or ranks dealt out in turn, and not every node has the same number.


# %%
def device_of(rank, hosts):
    # <solution>
    return hosts[:rank].count(hosts[rank])
    # <stub>
    # # which of the ranks before this one are on the same host?
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.device_of(device_of)

# %%
team.push(device_of=device_of)

# %%
# %%ranks
import socket

from mpi4py import MPI

comm = MPI.COMM_WORLD
hosts = comm.allgather(socket.gethostname())
try:
    print(f"{hosts[comm.rank]}: GPU {device_of(comm.rank, hosts)}, if there is one")
except NotImplementedError:
    print("device_of is not written yet")

# %% [markdown]
# Launchers also tell the local rank, each in its own variable: `SLURM_LOCALID`, `OMPI_COMM_WORLD_LOCAL_RANK`,
# `PALS_LOCAL_RANKID`, `LOCAL_RANK` under torchrun. Counting hosts needs none of them: the library does so wherever MPI starts
# the ranks, and takes the variable under srun and torchrun (`workshop_lib/training/world.py`).
#
# ## Two ways in
#
# The folder `submissions` has a page and scripts for each of several machines, and `slurm` for any other cluster with Slurm.
#
# 1. **The notebook inside the job.** `sbatch submissions/slurm/lab.sh` starts JupyterLab on a node of the job; its output says
#    how to reach it from your computer. `ranks.start()` then starts ranks on all nodes of the job.
# 2. **The ranks in a job, the notebook elsewhere.** `sbatch submissions/slurm/engines.sh` holds ranks until the job ends. On
#    the login node set `WORKSHOP_ATTACH=1` before `make lab`: in every notebook, `ranks.start` then takes those ranks, and
#    `restart` has the job start fresh ones. In a single notebook, `ranks.attach()` does it. There is no browser on a login
#    node: from your computer, `ssh -L 8888:localhost:8888 USER@LOGIN_NODE`, and open the address that `make lab` prints; if it
#    names another port than 8888, use that one.
#
# In both, a rank that dies, on whichever node, is reported in the notebook within seconds, and so is the end of the job.
# `WORKSHOP_PROFILE=cluster` makes the runs larger.
#
# *Try it* without a cluster: `.venv/bin/workshop engines start --ranks 2` in a terminal, then `ranks.attach()` here.
#
# ## Remember
#
# - Four things place ranks: ranks in all, ranks on a node, CPUs for each, and binding. Every launcher has its words for them.
# - Ranks on a node times CPUs a rank is at most the node's CPUs; hardware threads count only if they are used.
# - Do not trust options: ask the ranks where they may run, and write it down with every measurement.
# - As many threads as CPUs a rank has, and threads that sleep while they wait.
# - A device is chosen by the local rank, never by the global one.
#
# **Sources.** The command for Theta, and its environment: *Hands on for Data Parallel Deep Learning on Theta (CPU)*, from the
# ALCF's Computational Performance Workshop. Options: the manual pages of aprun (Cray ALPS), mpiexec (Cray PALS, MPICH, Open MPI
# 5) and srun, squeue (slurm.schedmd.com). Spinning: `KMP_BLOCKTIME` and its default in LLVM's OpenMP, openmp/runtime/src/kmp.h,
# and how `OMP_WAIT_POLICY` sets it, reviews.llvm.org/D18577 (both looked up 2026-11-22); *OpenMP Application Programming
# Interface*, chapter on environment variables (openmp.org).

# %%
ranks.stop()
