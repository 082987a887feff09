# %% [markdown] track="clusters and data"
# # From your machine to a cluster
#
# Your script trains on the two GPUs of one machine. Next week you get a cluster for an hour: more GPUs than you've ever had,
# in machines you can't see, behind a queue. What do you type? And what happens when one of those machines fails after 40
# minutes?
#
# **You will** write a job script for several nodes, run it, kill one of its ranks, and have the job continue where it stopped.
# Then you'll look at which cores the ranks may use, give each rank its GPU, and check an allocation before a long job.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no cluster, no GPU. [05](05_ddp.ipynb) explains
# `torchrun`.

# %%
from workshop_lib import paths, predict, profile, ranks, scripts, take_home

from lessons import compute_nodes as lesson

sizes = profile.current()
folder = paths.BUILD / "10_compute_nodes"
folder.mkdir(parents=True, exist_ok=True)
nodes = lesson.allocation.find()
print(
    nodes
    or f"This isn't a scheduler's job. It's one machine, with {lesson.cores.here()}."
)

# %% [markdown]
# ## From a laptop to an allocation
#
# A cluster has hundreds of machines, its *nodes*, and many users. You log in to a *login node*, where nothing heavy may run,
# and ask the *scheduler* for nodes. Your request waits in a *queue*. Then you get an *allocation*, a number of nodes for a
# limited time, and your *job* runs there. Inside the job, a *launcher* starts your processes on all the nodes.
#
# | step | Slurm | PBS |
# |---|---|---|
# | submit a script | `sbatch job.sh` | `qsub job.sh` |
# | get a shell inside a job | `salloc` | `qsub -I` |
# | see your jobs in the queue | `squeue --me` | `qstat -u $USER` |
# | see when a job will start | `squeue --me --start` | `qstat -T` |
# | cancel a job | `scancel JOB` | `qdel JOB` |
# | start a job only after another has succeeded | `sbatch --dependency=afterok:JOB` | `qsub -W depend=afterok:JOB` |
# | see how a job ended, and what it used | `sacct -j JOB`, `seff JOB` | `qstat -xf JOB` |
# | start processes inside a job | `srun` | `mpiexec` |
#
# **Why am I still waiting?** `squeue` gives the reason: `Resources` means you're next, `Priority` means that other jobs come
# first, and a reason with `Limit` means that you or your group can't use more right now. A shorter or smaller job often starts
# sooner. Afterwards, `seff` tells you how much of the requested cores, memory and time your job used.
#
# ## Write the job script
#
# A job script is a shell script. Comments at its top, the *directives*, hold the scheduler's options. This script trains on one
# node with two GPUs:
#
# ```bash
# #!/bin/bash
# #SBATCH --job-name=mnist
# #SBATCH --time=00:10:00          # Slurm ends the job after ten minutes
# #SBATCH --nodes=1
# #SBATCH --gpus-per-node=2
# #SBATCH --cpus-per-task=32       # cores for the script and everything that it starts
#
# torchrun --standalone --nproc-per-node=2 scripts/ddp.py --epochs 3
# ```
#
# `sbatch job.sh` submits it. Slurm reads the directives right away, and runs the script later, on the job's node. The script
# inherits your environment variables, so activate your Python environment before `sbatch`. Most clusters also want `--account`
# and `--partition`.
#
# On several nodes Slurm still runs the script *once*, on the first node. Without a launcher, all other nodes sit idle, and you
# pay for them. So the script uses `srun` to start one torchrun on each node, and each torchrun starts one process per GPU, as
# in [05](05_ddp.ipynb). To find each other, all torchruns need the same address: one host of the job, and a port that's free on
# this host. That's the *rendezvous*. With `--rdzv-backend=c10d`, the torchrun on that host listens at the port. Rank 0 may be
# on any node, so put the checkpoint into a folder that all nodes see, such as your home.
#
# `ddp.py` begins at epoch 1 every time. A job needs a script that continues where its last run stopped, such as
# `ddp_resume.py`. There, only rank 0 looks for the checkpoint, and tells all ranks whether there is one. If each rank decided
# for itself, the ranks of a node that can't see the file yet would start over while the others continue. Then each rank reads
# the file itself, because a large checkpoint shouldn't travel through the GPUs. Slurm sends the signal `SIGTERM` to a job that
# has to end. The ranks may notice the signal at different steps, so they ask each other every few steps. As soon as one of them
# has the signal, rank 0 saves, and all ranks end after the same step.

# %%
take_home.diff("ddp.py", "ddp_resume.py")

# %% [markdown]
# ### Exercise 1 (hard): a job for two nodes
#
# Write the script for two of these nodes, with `ddp_resume.py` in place of `ddp.py`. If you've never used Slurm, take your
# time, and open the hints early.
#
# - The job gets 2 nodes, with all their GPUs and cores (2 GPUs and 32 cores per node).
# - Each node runs one torchrun, which may use all GPUs and cores of its node, with one rank per GPU. The four ranks find each
#   other.
# - When a node fails, Slurm puts the job back into the queue (`--requeue`). When the job starts again, it appends to the old
#   output (`--open-mode=append`) and continues from `$checkpoint`.
#
# You'd submit the script from the folder `notebooks`, with `sbatch ../build/10_compute_nodes/job.sh --epochs 3`. `"$@"` then
# holds the options for your training script.
#
# <details><summary>Hint 1: what to ask for</summary>
#
# Four directives are numbers: nodes, *tasks* per node, GPUs per node and cores per task. For Slurm, a task is what `srun`
# starts, and that's torchrun here, not a rank.
#
# </details><details><summary>Hint 2: where to meet</summary>
#
# `scontrol show hostnames "$SLURM_JOB_NODELIST"` prints the job's nodes, one per line, and the first is as good as any.
# `torchrun` wants `--nnodes`, `--nproc-per-node`, `--rdzv-backend`, `--rdzv-endpoint=HOST:PORT` and a name for the job,
# `--rdzv-id`. Slurm gives every job a unique number, `$SLURM_JOB_ID`. The usual port, 29500, is often taken on nodes that
# several jobs share, but `$((20000 + SLURM_JOB_ID % 10000))` hardly ever is.
#
# </details><details><summary>Hint 3: one core?</summary>
#
# `srun` binds what it starts to cores. Since Slurm 22.05 it no longer takes `--cpus-per-task` from the directives, so torchrun
# gets a single core, which all ranks of the node then share. Repeat `--cpus-per-task` as an option of `srun`.
#
# </details><details><summary>Solution</summary>
#
# Look for this cell in `solutions/10_compute_nodes_solutions.ipynb`. The script to take home is
# [scripts/job.sh](scripts/job.sh): *Deeper: when the time is up* explains what it adds. On machines with a Slingshot network,
# NCCL also needs its plug-in, or it silently uses TCP. Your center's documentation has the lines to add.
#
# </details>

# %%
# %%writefile {folder}/job.sh
# <solution>
# #!/bin/bash
# #SBATCH --job-name=mnist
# #SBATCH --time=00:10:00
# #SBATCH --nodes=2
# #SBATCH --ntasks-per-node=1
# #SBATCH --gpus-per-node=2
# #SBATCH --cpus-per-task=32
# #SBATCH --requeue
# #SBATCH --open-mode=append
# script=scripts/ddp_resume.py
# checkpoint=../build/10_compute_nodes/mnist.pt
# first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# port=$((20000 + SLURM_JOB_ID % 10000))
#
# srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
#     torchrun --nnodes=2 --nproc-per-node=2 \
#     --rdzv-backend=c10d --rdzv-endpoint="$first:$port" --rdzv-id="$SLURM_JOB_ID" \
#     "$script" --out "$checkpoint" "$@"
# <stub>
# # #!/bin/bash
# # #SBATCH --job-name=mnist
# # #SBATCH --time=00:10:00
# # # more directives: your code here
# # script=scripts/ddp_resume.py
# # checkpoint=../build/10_compute_nodes/mnist.pt
# #
# # # start "$script" on both nodes, with --out "$checkpoint" "$@"
# </stub>
# </solution>

# %%
lesson.check.job(folder / "job.sh")

# %% [markdown]
# The check runs your script as Slurm would, but with stand-ins for `srun` and `torchrun` that only record how they were called.
#
# ## When a rank dies
#
# Now the two torchruns train for real. There's no Slurm here, so this machine plays both nodes. As soon as there's a checkpoint,
# the next cells kill rank 3 with `kill -9`. Until your script passes the check, they use the finished one.

# %%
guess = predict(
    "A rank is killed. After how many seconds have all other ranks noticed, and ended?",
    0,
    1800,
    "s",
)
guess

# %% [markdown]
# The kill sets off a flood of messages. The cell prints only the lines that name a rank, an exit code or an error. Which rank
# does each report blame?

# %%
checkpoint = folder / "mnist.pt"
checkpoint.unlink(missing_ok=True)
on_nodes = lesson.check.on_this_machine(
    folder / "job.sh", "--images", sizes.train_samples or 12_000, "--epochs", 3
)
both = " & ".join(on_nodes) + " & wait"
names = r"^epoch|rank +:|exitcode +:|Root Cause|Error: "
after_s = lesson.losing.run_and_lose(
    "bash", "-c", both, rank=3, once=checkpoint, only=names, timeout_s=sizes.timeout_s
)

# %%
if after_s is not None:
    display(guess.compare(after_s))

# %% [markdown]
# Each torchrun reports the first failure *it* saw, and calls that the root cause. Only one of the two is right. Rank 3 has exit
# code −9: the kernel ended it, as it does when a node runs out of memory. The other ranks failed *because* rank 3 was gone: they
# were waiting for its gradients when gloo lost the connection, or torchrun ended them (−15).
#
# In a real job's output, look for the failure with the *earliest* time, or for the one that differs from all the others. Most
# often it's an ordinary Python exception. torchrun's report shows the exception's traceback only if `main` has the decorator
# `@record`, so all our scripts have it.
#
# The other ranks notice the loss quickly, because the kernel closes a dead process's connections. If a node loses power,
# nothing gets closed, and the ranks wait for the timeout of `init_process_group`, by default 30 minutes for gloo and 10 for
# NCCL. But Slurm usually notices first, after about five minutes.
#
# Slurm puts a job back into the queue only when a *node* fails or when a more urgent job takes the nodes. When your *program*
# fails, submit the script again. Either way it starts from the top, possibly on other nodes. So start it again:

# %%
scripts.run("bash", "-c", both, timeout_s=sizes.timeout_s)

# %% [markdown]
# Training continues after the last step that was saved. How often should you save? The section *How often?* of
# [13b](13b_runs_that_survive.ipynb) has the answer.
#
# *Break it:* put `--rdzv-endpoint="localhost:$port"` into your script. On this machine that would even work. What does the
# check take into account that this machine can't show?
#
# ## Where are the ranks?
#
# The script's options are what you asked for. What did you get? Ask the ranks: `team.about()` has each rank's host, and the cores
# on which the operating system may run it.
#
# If ranks aren't *bound* to cores, they may move between all cores of their host, and leave their caches and perhaps their
# memory behind. The network suffers, too, because cores have to feed it. One user of Polaris measured allreduces between two
# nodes at 37 GB/s with `mpiexec --cpu-bind`, and at 4 GB/s without. This user's notes blame the default placement, which
# doesn't spread the ranks over the NUMA domains of a node [1]. So on a cluster, bind your ranks. torchrun binds them only if
# you add `--numa-binding=node`, which keeps each rank near its GPU.

# %%
team = ranks.start(None if nodes else sizes.ranks)
can_bind = lesson.cores.usable_threads() >= sizes.ranks and not team.attached_only
team = ranks.start(team.n, bind="core") if can_bind else team
lesson.figures.binding(
    team.about(),
    "Bound to cores" if can_bind else "These ranks cannot be bound from here",
)

# %% [markdown]
# A filled square is a core that the rank may use. If binding worked, no core is filled in more than one row.
#
# ## Threads
#
# Inside a rank, PyTorch and TensorFlow compute with *threads*. `OMP_NUM_THREADS` says how many, and it should be the number of
# cores a rank has. If nobody sets it, each rank may start one thread for *every* core of the node. torchrun sets it to 1 when it
# starts several ranks, which is safe.
#
# Too many threads waste the most time while they *wait*. With most libraries' default, a waiting thread *spins*: it checks over
# and over, and keeps a core busy that another rank could use. With `OMP_WAIT_POLICY=PASSIVE`, which the workshop's library sets
# for all ranks, a waiting thread sleeps instead. (`KMP_BLOCKTIME=0` does the same in Intel's OpenMP.)
#
# ## A GPU for each rank
#
# The *global rank* numbers all processes of the job, and the *local rank* numbers those on one node. With two nodes of two
# GPUs:
#
# | | node a | node b |
# |---|---|---|
# | rank | 0 1 | 2 3 |
# | local rank, and GPU | 0 1 | 0 1 |
#
# Each node numbers its GPUs from 0. So `device = rank` works on one node, and stops with an error on two. `device = rank % 2`
# works until a launcher deals the ranks out to the nodes in turn. Then ranks 0 and 2 are on node a and both take GPU 0, while 1
# and 3 both take GPU 1 of node b. NCCL refuses that with *Duplicate GPU detected*, but with gloo or MPI the ranks silently
# share a GPU.
#
# There's another trap. With `--gpus-per-task=1`, Slurm hides all GPUs from a rank except its own. The rank then sees *one* GPU,
# number 0, whatever its local rank is.
#
# ### Exercise 2 (warm-up): which device?
#
# With `device_of` you can give each rank its GPU under any launcher. `hosts` lists the hosts of all ranks in rank order, as
# `comm.allgather(socket.gethostname())` returns them, and `visible` is the number of GPUs that `rank` can see. Return the
# number of this rank's GPU. The ranks of each host get the GPUs 0, 1, 2, … in rank order. If a rank sees too few GPUs for that,
# start again at 0. The nodes may have different numbers of ranks.
#
# <details><summary>Hint 1: whom to count</summary>
#
# The first rank of a host gets GPU 0, the second GPU 1. So how many ranks of the same host come before this one?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `hosts[:rank]` are the hosts of all ranks before this one, and a list has a method `count`. With `% visible`, the numbers
# start again at 0.
#
# </details><details><summary>Solution</summary>
#
# {solution of device_of}
#
# </details>


# %%
def device_of(rank, hosts, visible):
    """The number of the GPU that `rank` takes, if it sees `visible` GPUs.

    `hosts` has the host of every rank.
    """
    # <solution>
    return hosts[:rank].count(hosts[rank]) % visible
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.device_of(device_of)

# %%
team.push(device_of=device_of)

# %%
# %%ranks
import socket

import torch
from mpi4py import MPI

comm = MPI.COMM_WORLD
hosts = comm.allgather(socket.gethostname())
visible = torch.cuda.device_count()
# A host without GPUs counts as one with two.
mine = device_of(comm.rank, hosts, visible or 2)
device = torch.device("cuda", mine) if visible else torch.device("cpu")
if (visible > 0) != any(comm.allgather(visible)):
    raise RuntimeError(
        f"rank {comm.rank} sees no GPU, and others do: "
        "look at what the launcher gives each rank"
    )
gpu = f"no GPU for rank {comm.rank}"
if visible:
    gpu = str(torch.cuda.get_device_properties(device).uuid)
taken = comm.allgather((hosts[comm.rank], gpu))
if taken.count(taken[comm.rank]) > 1:
    raise RuntimeError(
        f"rank {comm.rank} shares {gpu} with another rank: "
        "start at most one rank per GPU"
    )
print(
    f"{hosts[comm.rank]}: {gpu}; "
    f"I take number {mine} and compute on {torch.ones(2, device=device).device}"
)

# %% [markdown]
# The cell raises an error if two ranks took the same GPU, or if only some ranks see a GPU. Launchers also tell each rank its
# local rank, in variables such as `LOCAL_RANK` (torchrun) and `SLURM_LOCALID` (`srun`). Prefer `--gpus-per-node` to
# `--gpus-per-task`, because ranks that can't see each other's GPUs may have to send through main memory.
#
# ## Before a long job
#
# One slow cable, or one node with a different environment, and a job of a thousand GPU hours silently runs at half its speed.
# In a job, `workshop preflight` starts one rank per GPU, and takes a minute to look at every rank, device, link and disk. Put
# it where your training command would be, below the lines that load modules and set variables. Here it looks at this notebook's
# ranks:

# %%
lesson.preflight.look_at(team, folder)

# %% [markdown]
# Each line says *ok*, *look* or *wrong*, and what to do.
#
# ## Deeper: the same job under PBS
#
# Polaris, Aurora and Sophia have PBS instead of Slurm. Here is what you'd write there:
#
# | | Slurm | PBS |
# |---|---|---|
# | a directive | `#SBATCH --time=00:10:00` | `#PBS -l walltime=00:10:00` |
# | two whole nodes | `--nodes=2 --gpus-per-node=2 --cpus-per-task=32` | `-l select=2:ncpus=32:ngpus=2` |
# | each node's share on a host of its own | | `-l place=scatter` |
# | start it again if a node fails | `--requeue` | `-r y` |
# | the nodes of the job | `scontrol show hostnames "$SLURM_JOB_NODELIST"` | `cat "$PBS_NODEFILE"` |
# | the job's number | `$SLURM_JOB_ID`, such as 4711 | `$PBS_JOBID`, such as 4711.pbs-01 |
# | one task per node | `srun --ntasks-per-node=1` | `mpiexec -n 2 --ppn 1` |
# | the cores of each task | `srun --cpus-per-task=32` | `mpiexec --depth 32 --cpu-bind depth` |
# | use two hardware threads of each core | `srun --threads-per-core=2` | |
# | an environment variable for all ranks | `srun --export=ALL,NAME=VALUE` | `mpiexec --env NAME=VALUE` |
#
# (`mpiexec` is PALS here, HPE's launcher on Polaris and Aurora.) PBS starts your script in your home folder, and
# `$PBS_O_WORKDIR` is where you called `qsub`. Your environment stays behind unless you say `qsub -V`, so load modules and
# activate Python in the script.
#
# ### Exercise 3 (normal): the job for PBS
#
# Translate your job. It gets two nodes with 32 cores and two GPUs each, and the four ranks find each other and continue from
# `$checkpoint`. Leave out the queue, the project and the file systems, which most centers also ask for.
#
# <details><summary>Hint 1: what changes</summary>
#
# The directives, `cd`, the line with the first node, the port, and the launcher. The options of torchrun stay the same, except
# for the name of the job.
#
# </details><details><summary>Hint 2: a number for the port</summary>
#
# `$PBS_JOBID` isn't a number. `${PBS_JOBID%%.*}` is what comes before its first dot.
#
# </details><details><summary>Solution</summary>
#
# [scripts/job_pbs.sh](scripts/job_pbs.sh), ready to copy.
#
# </details>

# %%
# %%writefile {folder}/job_pbs.sh
# <solution>
# #!/bin/bash
# #PBS -N mnist
# #PBS -l walltime=00:10:00
# #PBS -l select=2:ncpus=32:ngpus=2
# #PBS -l place=scatter
# #PBS -r y
# cd "$PBS_O_WORKDIR" || exit 1
# script=scripts/ddp_resume.py
# checkpoint=../build/10_compute_nodes/mnist.pt
# first=$(head -n 1 "$PBS_NODEFILE")
# port=$((20000 + ${PBS_JOBID%%.*} % 10000))
#
# mpiexec -n 2 --ppn 1 --depth 32 --cpu-bind depth \
#     torchrun --nnodes=2 --nproc-per-node=2 \
#     --rdzv-backend=c10d --rdzv-endpoint="$first:$port" --rdzv-id="$PBS_JOBID" \
#     "$script" --out "$checkpoint" "$@"
# <stub>
# # #!/bin/bash
# # #PBS -N mnist
# # #PBS -l walltime=00:10:00
# # # more directives: your code here
# # script=scripts/ddp_resume.py
# # checkpoint=../build/10_compute_nodes/mnist.pt
# #
# # # start "$script" on both nodes, with --out "$checkpoint" "$@"
# </stub>
# </solution>

# %%
lesson.check.pbs_job(folder / "job_pbs.sh")

# %% [markdown]
# *Break it:* write a comment after a directive, as in `#PBS -r y  # start again`. Slurm ignores such comments. What does PBS do?
#
# ## Deeper: when the time is up
#
# [scripts/job.sh](scripts/job.sh) does what your script does, and more. These lines are new or different:
#
# ```bash
# #SBATCH --signal=B:USR1@120
# export TORCH_FR_DUMP_TEMP_FILE="${traces}_${SLURM_JOB_ID}_${SLURM_RESTART_COUNT:-0}_"
# trap 'scontrol requeue "$SLURM_JOB_ID"; wait' USR1
# srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --export=ALL --kill-on-bad-exit=1 … &
# wait $!
# ```
#
# Two minutes before its time is up, the script gets the signal `USR1`, and puts the job back into the queue. `B:` means that
# only the script gets the signal. `srun` has to run in the background, because bash handles a signal only between commands, or
# while it waits in `wait`. `wait $!` returns `srun`'s exit code, so Slurm learns whether the run failed. With
# `--kill-on-bad-exit=1`, `srun` ends all torchruns when one fails. [13](13_when_training_breaks.ipynb) explains
# `TORCH_FR_DUMP_TEMP_FILE`, which `--export=ALL` passes on to the ranks.
#
# Slurm then sends `SIGTERM` to all processes, and `SIGKILL` after the cluster's `KillWait`, usually 30 seconds. So that's how
# long `ddp_resume.py` has for its last steps and for saving. Under PBS it's `kill_delay`, by default only 10 seconds.
#
# ## Deeper: without torchrun
#
# The launcher can also start all ranks itself. torchrun sets five environment variables that `init_process_group` and scripts
# read. Without torchrun, your job has to set them:
#
# ```bash
# export MASTER_ADDR=$first MASTER_PORT=$port
# srun --ntasks-per-node=2 --cpus-per-task=16 --export=ALL bash -c \
#     'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID python ddp.py'
# ```
#
# `LOCAL_RANK` numbers the ranks of a host. Scripts choose their GPU with it, and many crash if it isn't set. If `mpiexec`
# starts the ranks, put these lines at the top of your script:
#
# ```python
# import os
# import socket
#
# from mpi4py import MPI
#
# comm = MPI.COMM_WORLD
# same_host = comm.Split_type(MPI.COMM_TYPE_SHARED)
# with socket.create_server(("", 0)) as free:
#     port = free.getsockname()[1]
# address, port = comm.bcast((socket.gethostname(), port))
# os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
# os.environ |= {"RANK": str(comm.rank), "WORLD_SIZE": str(comm.size)}
# os.environ["LOCAL_RANK"] = str(same_host.rank)
# ```
#
# Ranks per node times cores per rank must fit into the node's cores, and a core with two hardware threads may count as two.
#
# ## Deeper: notebooks on a cluster
#
# The folder `submissions` has scripts for several machines, and its README explains them. `lab.sh` starts JupyterLab on a node of
# a job. `engines.sh` keeps ranks running in a job, for notebooks on the login node: set `WORKSHOP_ATTACH=1` before `make lab`.
#
# [The network of a cluster, and containers](../book/clusters.md) says what NCCL prints about the network, how to start a job in
# a container, and which nodes are next to each other.
#
# *Try it* without a cluster: `.venv/bin/workshop engines start --ranks 2` in a terminal, then `ranks.attach()` here.
#
# ## Remember
#
# - Slurm runs your script once, on the first node. What you start with `srun` runs on all nodes.
# - Start one torchrun per node, let them meet at a host of the job, and set `--nproc-per-node` to the GPUs of *one* node.
# - Every node's report names a root cause, but only one of them is right: the earliest, or the one that differs from the rest.
# - Check on which cores the ranks may run, give each rank one thread per core, and choose the device by the *local* rank.
#
# **Sources**, looked up by 2026-11-26. [1] github.com/awikner/physicsnemo, hpc/polaris.md: 8 ranks, 4.4 GiB, August 2026. Cores
# and `srun`: the manual of sbatch. `SlurmdTimeout`: the manual of slurm.conf (slurm.schedmd.com). PBS: *Altair PBS Professional
# User's Guide*, the source of OpenPBS's `qsub`, and the pages of each machine in `submissions`.

# %%
ranks.stop()
