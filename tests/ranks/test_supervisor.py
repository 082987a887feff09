"""A supervisor ends its command with its owner, and leaves nothing of an mpiexec behind."""

import functools
import os
import signal
import subprocess

from workshop_lib.ranks import which_mpi
from workshop_lib.ranks.processes import SUPERVISOR


def test_a_killed_mpiexec_leaves_nothing_and_what_another_one_left_is_in_nobodys_way(tmp_path):
    """Open MPI's refuses to start where there's a folder of a killed one with its process number."""
    settings = os.environ | which_mpi.environment() | {"TMPDIR": str(tmp_path)}
    run = functools.partial(subprocess.run, env=settings, timeout=20)
    kill = ["bash", "-c", "mkdir -p $PRTE_MCA_prte_local_tmpdir_base/ompi.$$ && kill -9 $$"]
    assert run([*SUPERVISOR, "--", *kill]).returncode == 128 + signal.SIGKILL
    assert not list(tmp_path.iterdir())

    planted = 'mkdir -p $TMPDIR/ompi.$$; touch $TMPDIR/ompi.$$/pmix.vm.tool; exec "$0" "$@"'
    command = ["bash", "-c", planted, *which_mpi.mpiexec(), "-n", "1", "true"]
    assert run([*SUPERVISOR, "--", *command]).returncode == 0
    [other] = tmp_path.iterdir()
    assert [file.name for file in other.iterdir()] == ["pmix.vm.tool"]


def test_a_supervisor_whose_owner_ended_before_it_began_ends_its_command():
    owner = subprocess.Popen(["true"])
    owner.wait(10)
    command = [*SUPERVISOR, "--owner", str(owner.pid), "--", "sleep", "60"]
    assert subprocess.run(command, timeout=20).returncode == 128 + signal.SIGTERM
