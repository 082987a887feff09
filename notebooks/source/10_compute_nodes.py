# %% [markdown] track="clusters and data"
# # From your machine to a cluster
#
# Your script trains on the two GPUs of one machine. Next week you get a cluster for an hour: more GPUs than you've ever had,
# in machines you can't see, behind a queue. What do you type? And what happens when one of those machines fails after 40
# minutes?
#
# **You will** write a job script for several nodes, run it, kill one of its ranks and see which report blames whom, and have
# the job continue where it stopped. Then you'll look at which cores the ranks may use, give each rank its GPU, and check an
# allocation before a long job.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no cluster, no GPU. If the notebook runs
# inside a job, or is attached to one, the same cells show that job's nodes.

# %%
import time

import torch

from workshop_lib import predict, profile, ranks
from workshop_lib.lessons.compute_nodes import figures
from workshop_lib.lessons.compute_nodes import judge as check
from workshop_lib.lessons.compute_nodes import judge_job_script as job_script
from workshop_lib.lessons.compute_nodes.preflight import run as preflight
from workshop_lib.notebook import take_home
from workshop_lib.paths import BUILD
from workshop_lib.ranks import allocation, launchers, scripts
from workshop_lib.training.cores import usable_cores

sizes = profile.current()
folder = BUILD / "10_compute_nodes"
folder.mkdir(parents=True, exist_ok=True)
nodes = allocation.find()
print(nodes or f"This isn't a scheduler's job. It's one machine, with {usable_cores()} cores.")

# %% [markdown]
# ## From a laptop to an allocation
#
# A cluster has hundreds of machines, its *nodes*, and many users. You log in to a *login node*, where nothing heavy may run,
# and ask the *scheduler* for nodes. Your request waits in a *queue*. Then you get an *allocation*, a number of nodes for a
# limited time, and your *job* runs there. Inside the job a *launcher* starts your processes on all of its nodes.
#
# | step | Slurm | PBS |
# |---|---|---|
# | submit a script | `sbatch job.sh` | `qsub job.sh` |
# | get a shell inside a job | `salloc` | `qsub -I` |
# | see your jobs in the queue | `squeue --me` | `qstat -u $USER` |
# | ask when one will start | `squeue --me --start` | `qstat -T` |
# | cancel one | `scancel JOB` | `qdel JOB` |
# | start processes inside | `srun` | `mpiexec` |
#
# **Why am I still waiting?** `squeue` gives the reason. `Resources` means you're next, as soon as nodes are free. `Priority`
# means other jobs come first. A reason that begins with `QOS` or `Assoc` means you've reached one of your limits.
# A shorter or smaller job often starts sooner, in a gap that a larger one leaves.
#
# ## Write the job script
#
# A job script is a shell script with the scheduler's options in comments at its top, its *directives*. This one trains on one
# node with two GPUs:
#
# ```bash
# #!/bin/bash
# #SBATCH --job-name=mnist
# #SBATCH --time=00:10:00          # the job is ended after ten minutes
# #SBATCH --nodes=1
# #SBATCH --gpus-per-node=2
# #SBATCH --cpus-per-task=32       # cores for the script and everything that it starts
#
# torchrun --standalone --nproc-per-node=2 scripts/ddp.py --epochs 3
# ```
#
# `sbatch job.sh` hands it in. Slurm reads the directives then, and runs the script later, on the job's node.
#
# On several nodes Slurm still runs the script *once*, on the first node. That surprises many people: without a launcher, all
# other nodes sit idle, and you pay for them. So the script uses `srun` to start one torchrun on each node, and each torchrun
# starts one process per GPU, as in [05](05_ddp.ipynb). The torchruns find each other at an address that all of them know, the
# *rendezvous*. It's a host of the job and a port. With `--rdzv-backend=c10d`, the torchrun on that host opens the port, and
# that's where all of them get their ranks.
#
# What should the script start? `ddp.py` from notebook 05 begins at epoch 1 every time. A job needs a script that continues
# where it stopped, and these few lines are all it takes. Only rank 0 looks for the checkpoint, and it sends what it finds to all
# ranks. If each rank looked for itself, a file that some nodes can't see (yet) would have some ranks continue and others start
# over, and their gradients would mix. The checkpoint holds the epoch, and the schedule follows from it, so the job may continue on
# more nodes or fewer:

# %%
take_home.diff("ddp.py", "ddp_resume.py")

# %% [markdown]
# ### Exercise 1 (normal): a job for two nodes
#
# Now two of these nodes at once, and `ddp_resume.py` in place of `ddp.py`. Write the script:
#
# - The job gets 2 nodes, with all their GPUs and cores (2 and 32 per node).
# - Each node runs one torchrun, which may use all of them, with one rank per GPU. The four ranks find each other.
# - When a node fails, Slurm puts the job back into the queue. When it starts again, it appends to the old output and continues
#   from `$checkpoint`.
#
# On a cluster you'd submit it from the folder `notebooks`, with `sbatch ../build/10_compute_nodes/job.sh --epochs 3`. `"$@"`
# then holds the options for your training script.
#
# <details><summary>Hint 1: what to ask for</summary>
#
# Directives are options of `sbatch`: how many nodes, *tasks* per node, GPUs per node and cores per task. For Slurm, a task is
# what `srun` starts, and that's torchrun here, not a rank. Two more directives are about starting again: `man sbatch` has them
# under `--requeue` and `--open-mode`.
#
# </details><details><summary>Hint 2: where to meet</summary>
#
# `scontrol show hostnames "$SLURM_JOB_NODELIST"` prints the job's nodes, one per line, and the first is as good as any.
# `torchrun` wants `--nnodes`, `--nproc-per-node`, `--rdzv-backend`, `--rdzv-endpoint=HOST:PORT` and a name for the job,
# `--rdzv-id`. Slurm gives every job a unique number, `$SLURM_JOB_ID`.
#
# </details><details><summary>Hint 3: one core?</summary>
#
# `srun` binds what it starts to cores. Since Slurm 22.05 it no longer takes `--cpus-per-task` from the directives, so torchrun
# gets a single core, which all ranks of the node then share. Repeat it as an option of `srun`.
#
# </details><details><summary>Solution</summary>
#
# [scripts/job.sh](scripts/job.sh), ready to copy.
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
# # Put your own paths here. All nodes must be able to read them.
# script=scripts/ddp_resume.py
# checkpoint=../build/10_compute_nodes/mnist.pt
# first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
#
# srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
#     torchrun --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node=2 \
#     --rdzv-backend=c10d --rdzv-endpoint="$first:29500" --rdzv-id="$SLURM_JOB_ID" \
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
job_script.job(folder / "job.sh")

# %% [markdown]
# The check ran your script as Slurm would, but with stand-ins for `srun` and `torchrun` that only record how they were called.
# Next, the two torchruns train for real. There's no Slurm here, so this machine plays both nodes, and they meet at this
# machine's own address. These are the two commands. (Until your script passes the check, they're those of the finished one.)

# %%
checkpoint = folder / "mnist.pt"
checkpoint.unlink(missing_ok=True)
options = ["--images", sizes.train_samples or 12_000, "--epochs", 3]
on_nodes = list(job_script.on_this_machine(folder / "job.sh", *options))
print(*on_nodes, sep="\n\n")

# %%
guess = predict("A rank is killed. After how many seconds have all other ranks noticed, and ended?", 0, 1800, "s")
guess

# %% [markdown]
# ## When a rank dies
#
# Let's not wait for a machine to fail. The next cell starts both nodes' torchruns, and kills rank 3 with `kill -9` as soon as
# there's a checkpoint. That sets off a flood of messages. The cell prints only the lines that name a rank, an exit code or an
# error. Which rank does each report blame?

# %%
both = f"({on_nodes[0]}) & ({on_nodes[-1]}) & wait"
names = r"^epoch|rank +:|exitcode +:|Root Cause|Error: "
after_s = scripts.run_and_lose("bash", "-c", both, rank=3, once=checkpoint, only=names, timeout_s=sizes.timeout_s)

# %%
if after_s is not None:
    display(guess.compare(after_s))

# %% [markdown]
# Each torchrun reports the first failure *it* saw, and calls that the root cause. Only one of the two really is.
# Rank 3 has exit code −9: the kernel ended it, as it does when a node runs out of memory. The other ranks failed *because* of
# that. They were waiting for rank 3's gradients, gloo told them that the connection was gone, and torchrun stopped the ranks
# that were left. The torchrun on the other node may even report nothing but a lost rendezvous.
#
# In a real job's output, look for the failure with the *earliest* time, and for the one that says something else than all the
# others. Most often it's an ordinary Python exception. torchrun's report shows its traceback only if `main` has the decorator
# `@record`, so all our scripts have it.
#
# The other ranks noticed this fast because the kernel closes a dead process's connections.
# If a node loses power, or a cable fails, nothing gets closed.
# Then the other ranks wait until the timeout of `init_process_group`, by default 30 minutes for gloo and 10 for NCCL.
#
# Slurm would now see a failed job. By itself, Slurm puts a job back into the queue only when a *node* fails, or when a more
# urgent job takes the nodes.
# When your *program* fails, you have to run `scontrol requeue JOB` yourself. Either way the script starts
# from the top, possibly on other nodes. So start it again:

# %%
scripts.run("bash", "-c", both, timeout_s=sizes.timeout_s)

# %% [markdown]
# Training continues after the last epoch that was saved.
# You lose at most what came after the last checkpoint, so how often should you
# save? If a checkpoint costs $c$ seconds and the job fails every $M$ seconds on average, saving about every $\sqrt{2cM}$
# seconds is best (Young 1974).
# And note that $M$ shrinks as the job grows: with a thousand nodes, it's a thousandth of what it is with one.
#
# *Break it:* put `--rdzv-endpoint="localhost:29500"` into your script. On this machine that would even work. What does the
# check take into account that this machine can't show?
#
# *Beat it:* `torchrun --max-restarts=3` starts all ranks again by itself, without the queue. What does it need from the other
# torchrun to do so, and which failure can't it survive?
#
# ## Where are the ranks?
#
# The script's options are what you asked for. What did you get? Ask the ranks: `team.about()` has each rank's host, and the
# cores on which the operating system may run it.

# %%
team = ranks.start(None if nodes else sizes.ranks)
guess_cores = predict("On how many of this machine's cores may rank 0 run?", low=1, high=usable_cores(), unit="cores")
guess_cores

# %%
free = team.about()
guess_cores.compare(len(free[0]["cores"]))

# %%
figures.binding(free, "Not bound")

# %% [markdown]
# There's a panel for each host, a row for each rank, and a filled square for each core it may use. Ranks that aren't *bound*
# may move between all cores of their host. That's good where other programs run too, so it's the default here. A compute node
# is usually yours alone. There, a rank that moves leaves its caches behind and, if the node has two processors, perhaps its
# memory as well. So on a cluster, *bind* your ranks.

# %%
can_bind = usable_cores() >= sizes.ranks and not team.attached_only
team = ranks.start(team.n, bind="core") if can_bind else team
figures.binding(team.about(), "Bound to cores" if can_bind else "These ranks cannot be bound from here")

# %% [markdown]
# If binding worked, no core is filled in more than one row now. Such a map shows two classic mistakes at a glance, which you'd
# otherwise notice only as slow training: two jobs on one node whose ranks are both bound from core 0 on, and a rank with 16
# threads that's bound to one core.
#
# ## Threads
#
# Inside a rank, PyTorch and TensorFlow compute with *threads*. `OMP_NUM_THREADS` says how many, and it should be the number of
# cores a rank has. If nobody sets it, each rank may start one thread for *every* core of the node. torchrun sets it to 1 when
# it starts several ranks, which is safe. A `DataLoader`'s worker processes use one thread each in any case: what loading needs
# is cores, one per worker.
#
# What do too many threads cost? Let all ranks multiply matrices at the same time: first with one thread for each core of their
# share, then each with one thread for every core of the machine.

# %%
guess_threads = predict(
    "How many times as long does it take if every rank has threads for all cores?", 0.2, 10, "times"
)
guess_threads

# %%
team = ranks.start(team.n)


def seconds_of_products(threads):
    """Seconds in which this rank multiplies matrices with this many threads; the best of three."""
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


# %%
on_a_host = sum(about["host"] == free[0]["host"] for about in free)
cores = len(free[0]["cores"])
shared_s = team.run(seconds_of_products, max(1, cores // on_a_host), show=False)[0]
all_s = team.run(seconds_of_products, cores, show=False)[0]
print(f"threads per rank: {max(1, cores // on_a_host)} took {shared_s:.3f} s, {cores} took {all_s:.3f} s")
guess_threads.compare(all_s / shared_s)

# %% [markdown]
# How much it costs depends on how threads *wait*. (On a machine that other programs are using, you may even see the opposite.)
# A thread that has done its share waits for the other threads of its rank. If it *spins*, it checks over and over, and keeps a
# core busy that another rank could use. Two settings make it sleep:
#
# - `OMP_WAIT_POLICY=PASSIVE` works in every OpenMP implementation. This library sets it for all ranks.
# - `KMP_BLOCKTIME=0` is for Intel's and LLVM's OpenMP. It sets how many milliseconds a thread spins before it goes to sleep. The
#   default is 200.
#
# ## A GPU for each rank
#
# The *global rank* numbers all processes of the job, the *local rank* those on one node. With two nodes of two GPUs:
#
# | | node a | node b |
# |---|---|---|
# | rank | 0 1 | 2 3 |
# | local rank | 0 1 | 0 1 |
# | GPU | 0 1 | 0 1 |
#
# Each node numbers its GPUs from 0. So `device = rank` works as long as there's one node. On two nodes it stops with an error,
# and that's the lucky case. `device = rank % 2` raises no error, but if the launcher deals the ranks out to the nodes in turn,
# two of them silently share a GPU.
#
# ### Exercise 2 (warm-up): which device?
#
# With `device_of` you can give each rank its GPU under any launcher. It's given the hosts of all ranks, as a list in rank
# order: `hosts = comm.allgather(socket.gethostname())`.
# Return the number of the GPU for `rank`, so that the ranks of each host get the GPUs 0, 1, 2, … in rank order.
# Some launchers fill one node after the other, some deal the ranks out in turn, and the nodes may have different numbers of
# ranks.
#
# <details><summary>Hint 1: whom to count</summary>
#
# The first rank of a host gets GPU 0, the second GPU 1. So how many ranks of the same host come before this one?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `hosts[:rank]` are the hosts of all ranks before this one, and a list has a method `count`.
#
# </details><details><summary>Solution</summary>
#
# {solution of device_of}
#
# </details>


# %%
def device_of(rank, hosts):
    """The number of the GPU that `rank` takes on its host; `hosts` has the host of every rank."""
    # <solution>
    return hosts[:rank].count(hosts[rank])
    # <stub>
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

import torch
from mpi4py import MPI

comm = MPI.COMM_WORLD
hosts = comm.allgather(socket.gethostname())
mine = device_of(comm.rank, hosts)
device = torch.device("cuda", mine) if mine < torch.cuda.device_count() else torch.device("cpu")
print(f"{hosts[comm.rank]}: GPU {mine} is mine, so I compute on {torch.ones(2, device=device).device}")

# %% [markdown]
# Launchers also tell each rank its local rank, but each launcher uses its own variable:
# `SLURM_LOCALID`, `OMPI_COMM_WORLD_LOCAL_RANK`,
# `PALS_LOCAL_RANKID`, and `LOCAL_RANK` under torchrun. If you count hosts, you need none of them.
#
# There's a trap. With `--gpus-per-task=1`, Slurm hides all GPUs from a rank except its own. Every rank then sees *one* GPU,
# number 0, whatever its local rank is. That's why a library should take the local rank *modulo the number of GPUs it sees*.
# (And ranks
# that can't see each other's GPUs may have to send through main memory, so prefer `--gpus-per-node`.)
#
# ## Before a long job
#
# One slow cable, one node with another environment, or NCCL without its plug-in, and a job of a thousand GPU hours runs at half
# its speed without a word. A minute's look at the whole allocation finds that. In a job, `workshop preflight` starts one rank
# per GPU and looks at every rank, device, link and disk. Here it looks at this notebook's ranks:

# %%
preflight.look_at(team, folder)

# %% [markdown]
# Each line says *ok*, *look* or *wrong*, and what to do. The command can compare, too: with `--machine polaris` it says how much
# of that machine's bandwidth an allreduce gets ([08c](08c_forecasting.ipynb) knows some machines). `--out monday.json` keeps the
# record, and `--before monday.json` compares with it another day.
#
# ## Deeper: what you tell a launcher
#
# The launcher can also start all ranks itself, without torchrun. That's how every MPI program starts. Every launcher has options
# for the same things:
#
# | | `srun` | PALS `mpiexec` (Polaris, Aurora) |
# |---|---|---|
# | ranks of the whole job | `-n 16` | `-n 16` |
# | ranks on each node | `--ntasks-per-node=4` | `--ppn 4` |
# | CPUs of each rank | `--cpus-per-task=32` | `--depth 32` |
# | hardware threads to use on each core | `--threads-per-core=2` | |
# | bind each rank to its own CPUs | `--cpu-bind=cores` | `--cpu-bind depth` |
# | an environment variable for all ranks | `--export=ALL,NAME=VALUE` | `--env NAME=VALUE` |
#
# Ranks per node times CPUs per rank must fit into the node's CPUs, and a core with two hardware threads may count as two. Open
# MPI's `mpiexec` takes the ranks per node from its list of hosts, or from `--map-by ppr:4:node`.
# Here's what this library would type for four nodes with four ranks each:

# %%
hosts = allocation.expand("nid[00012-00014,00020]")
for kind, program in {"srun": "srun", "pals": "mpiexec", "hydra": "mpiexec", "openmpi": "mpirun"}.items():
    words = launchers.command(kind, [program], n=16, per_node=4, threads=16, bind="core", hosts=tuple(hosts))
    print(f"{kind:>8}:", " ".join(words))

# %% [markdown]
# How does a program find out which nodes it got? Schedulers leave that in files and environment variables. Without a number,
# `ranks.start()` fills the allocation that it finds there.

# %%
slurm = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "nid[00012-00014,00020]", "SLURM_NTASKS_PER_NODE": "4"}
job = allocation.find(slurm)
print(job.hosts, "with", job.tasks_per_node, "ranks each:", job.ranks(slurm), "ranks")

# %% [markdown]
# ## Deeper: when the time is up
#
# Slurm warns a job before its time is up, if you ask it to. With these lines
# the script gets the signal `USR1` two minutes before the
# end, and puts itself back into the queue:
#
# ```bash
# #SBATCH --signal=B:USR1@120
# trap 'scontrol requeue "$SLURM_JOB_ID"' USR1
# srun … &
# wait
# ```
#
# With `B:`, only the script gets the signal; without it, only what `srun` started. And `srun` has to run in the background,
# because bash handles a signal only between commands, or while it waits in `wait`. As `ddp_resume.py` saves a
# checkpoint after every epoch, that's all you need.
# `$SLURM_RESTART_COUNT` says how many times the job has been restarted. Stop at some number, or a job whose time limit is too
# short for one epoch will restart all night.
#
# ## Deeper: nodes, switches and groups
#
# What is your node next to? A large machine is built in levels:

# %%
figures.dragonfly()

# %% [markdown]
# This is a *dragonfly*. Nodes are attached to *switches*, all switches of a *group* are connected to each other, and so are
# all groups.
# So the path between any two nodes takes at most three links from switch to switch, one of them between groups. One of these
# longest paths is drawn in orange.
#
# | level | Perlmutter's GPU nodes [1] |
# |---|---|
# | node | 64 cores, 4 A100, 4 network cards |
# | on one card, the *blade* | 2 nodes |
# | chassis | 8 blades and 4 switches |
# | cabinet | 8 chassis: 128 nodes, one group |
# | machine | 1,792 such nodes |
#
# When does it matter where your nodes are?
#
# - *Inside a node or not* matters most. GPUs in one node are connected by links that are several times as fast as the network
#   (the forecasts of [08c](08c_forecasting.ipynb) have the numbers of some machines). Whatever sends the most belongs there,
#   so use tensor parallelism inside an *NVLink domain*, and data parallelism between domains. A domain was the 8 GPUs of a node
#   for years. In a GB200 NVL72 it's a rack of 72 GPUs.
# - *The same group or not* matters less on a dragonfly, which was built for that: the path is only one or two links longer.
#   It does matter when other jobs load the links between groups. Then your times vary more from run to run.
# - On other networks it can matter a lot. Fram, a Norwegian cluster, has four islands with a slower network between them.
#   There a job waits up to seven days to get all its nodes in one island [2].
#
# Slurm lets you choose: `--switches=1@60` waits up to 60 minutes for nodes on one switch, and then takes what there is. The site
# may allow less: `scontrol show config | grep max_switch_wait` shows the limit in seconds. Is it worth the wait? Measure it: run
# the same job with this option and without it.
#
# ## Deeper: what NCCL says
#
# On GPUs it's NCCL that sends, so if something is wrong with the network, NCCL knows. Set these variables in your script, with
# `export`, above `srun`:
#
# | variable | what for |
# |---|---|
# | `NCCL_DEBUG=INFO` | prints the version, the network it found, and how it connects the GPUs. Look for `NET/`: `IB` or a vendor's plug-in is the fast network, and `Socket` means that it was *not* found, and training is many times slower |
# | `NCCL_DEBUG_SUBSYS=INIT,NET` | prints only these parts |
# | `NCCL_DEBUG_FILE=nccl.%h.%p` | writes one file per host and process, so that their lines don't get mixed up |
# | `NCCL_SOCKET_IFNAME=hsn` | use network interfaces whose names begin like this. A wrong guess here is the usual reason for a start that hangs |
# | `NCCL_IB_HCA=mlx5` | use these InfiniBand adapters |
# | `GLOO_SOCKET_IFNAME=eth0` | the same for gloo |
# | `TORCH_NCCL_ASYNC_ERROR_HANDLING` | ends a rank whose collective failed or timed out. That's the default, so don't switch it off |
# | `TORCH_DISTRIBUTED_DEBUG=INFO` | DDP logs how it divides the gradients into buckets. (`DETAIL` also checks that all ranks call the same collective, but it crashes DDP on CPUs) |
# | `TORCH_FR_DUMP_TEMP_FILE=/scratch/trace_` | where PyTorch's *flight recorder* writes when a collective times out. It remembers the last 2,000 collectives (`TORCH_FR_BUFFER_SIZE`) without being asked. [13](13_when_training_breaks.ipynb) reads such a file |
# | `OMP_NUM_THREADS` | as above: torchrun sets it to 1, unless you do |
#
# NVIDIA's own advice is not to leave debugging settings in scripts: what fixes one machine slows down the next [3].
#
# ## Deeper: notebooks on a cluster
#
# The folder `submissions` has a page and scripts for each of several machines. The ones in `slurm` are for any other cluster
# with Slurm.
#
# 1. **The notebook inside the job.** `sbatch submissions/slurm/lab.sh` starts JupyterLab on a node of the job, and its output
#    says how to reach it from your computer. `ranks.start()` then starts ranks on all nodes of the job.
# 2. **The ranks in a job, the notebook elsewhere.** `sbatch submissions/slurm/engines.sh` keeps ranks running until the job
#    ends. On the login node, set
#    `WORKSHOP_ATTACH=1` before `make lab`: in every notebook, `ranks.start` then uses those ranks, and
#    `restart` makes the job start fresh ones. For a single notebook, call `ranks.attach()` instead.
#    A login node has no browser. So run `ssh -L 8888:localhost:8888 USER@LOGIN_NODE` on your computer, and open the address
#    that `make lab` prints there.
#
# Either way, the notebook tells you within seconds when a rank dies, on whichever node, or when the job ends.
# `WORKSHOP_PROFILE=cluster` makes the runs larger.
#
# *Try it* without a cluster: `.venv/bin/workshop engines start --ranks 2` in a terminal, then `ranks.attach()` here.
#
# ## Remember
#
# - Slurm runs your script once, on the first node. Whatever you start with `srun` runs on all of them.
# - Start one torchrun per node, let them meet at a host of the job, and set `--nproc-per-node` to the GPUs of *one* node.
# - Ask `srun` for the cores again. Don't trust options: ask the ranks where they may run, and write it down with every
#   measurement.
# - Every node's report names a root cause, but only one of them is right: the earliest, or the one that says something else.
# - A job you can kill and start again is a job you can leave alone: save often, load at the start, and use `--requeue`.
# - Choose the device by the local rank, never by the global one. Give each rank one thread per core, and let threads sleep
#   while they wait.
#
# **Sources.** [1] *Perlmutter Architecture* (docs.nersc.gov). A dragonfly's three links: D. De Sensi et al., *An In-Depth Analysis
# of the Slingshot Interconnect* (SC 2020, arXiv:2008.08886). [2] *Job Placement on Fram* (documentation.sigma2.no). [3] NVIDIA,
# *NCCL User Guide, Environment Variables*. Flight recorder: PyTorch 2.13, c10d/FlightRecorder.hpp. Cores and `srun`: the manual of
# sbatch (slurm.schedmd.com), since 22.05; `max_switch_wait`: the manual of slurm.conf. How often to save: J. W. Young, *A first
# order approximation to the optimum checkpoint interval* (CACM 1974). Spinning: LLVM's openmp/runtime/src/kmp.h, and *OpenMP
# Application Programming Interface*, environment variables. All looked up by 2026-11-26.

# %%
ranks.stop()
