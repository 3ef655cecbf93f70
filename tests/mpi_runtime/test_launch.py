"""Which launcher, flags and environment; and what is said when they do not fit."""

from __future__ import annotations

import pytest

from hpcslaq.errors import LaunchError
from hpcslaq.mpi.boot import check_world
from hpcslaq.mpi.launch import (
    Mpi,
    family_of,
    find_mpi,
    launched_rank,
    launched_size,
    mpi_command,
    mpi_environment,
)

OPENMPI = Mpi("openmpi", "Open MPI v5.0.11", "/x/mpirun", "/x/python")
MPICH = Mpi("mpich", "MPICH Version: 5.0.2", "/x/mpiexec", "/x/python")


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("mpirun (Open MPI) 5.0.11", "openmpi"),
        ("prterun (PRRTE) 3.0.14", "openmpi"),
        ("HYDRA build details:", "mpich"),
        ("MPICH Version:      5.0.2", "mpich"),
        ("Intel(R) MPI Library 2021.11", "mpich"),
        ("something else 1.0", None),
    ],
)
def test_the_family_is_told_from_the_version(text, family):
    assert family_of(text) == family


@pytest.mark.parametrize(
    ("environ", "size", "rank"),
    [
        ({}, None, None),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}, 4, 3),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, 2, 0),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "8"}, 8, 1),
        ({"SLURM_NTASKS": "8"}, None, None),
    ],
)
def test_a_launch_is_known_by_its_environment(environ, size, rank):
    assert launched_size(environ) == size
    assert launched_rank(environ) == rank


def test_open_mpi_may_use_more_ranks_than_cores():
    line = mpi_command(OPENMPI, 5, ["-m", "hpcslaq.mpi", "RUN"])
    assert line[:4] == ["/x/mpirun", "-n", "5", "--oversubscribe"]
    assert line[-6:] == ["/x/python", "-m", "mpi4py", "-m", "hpcslaq.mpi", "RUN"]
    assert "--oversubscribe" not in mpi_command(MPICH, 5, [])


def test_settings_of_the_user_are_kept():
    env = mpi_environment(OPENMPI, {"OMP_NUM_THREADS": "3", "OMPI_MCA_btl": "tcp,self"}, 5, 2)
    assert (env["OMP_NUM_THREADS"], env["OPENBLAS_NUM_THREADS"]) == ("3", "1")
    assert env["OMPI_MCA_btl"] == "tcp,self"


@pytest.mark.parametrize(("ranks", "yields"), [(2, "0"), (3, "1")])
def test_ranks_yield_only_where_they_outnumber_the_cores(ranks, yields):
    assert mpi_environment(OPENMPI, {}, ranks, 2)["OMPI_MCA_mpi_yield_when_idle"] == yields


def test_a_world_that_is_not_what_the_launcher_promised_is_refused():
    with pytest.raises(LaunchError, match=r"started 4 ranks, but MPI sees a world of 1.*MPICH 5"):
        check_world(1, 4, "MPICH 5")
    with pytest.raises(LaunchError, match="1 rank is not enough"):
        check_world(1, None, "MPICH 5")
    check_world(2, None, "MPICH 5")
    check_world(4, 4, "MPICH 5")


@pytest.mark.launch
def test_the_family_that_is_asked_for_is_found_or_refused_by_name(mpi):
    found = find_mpi(mpi.family, mpi.python)
    assert (found.family, found.launcher) == (mpi.family, mpi.launcher)
    other = "mpich" if mpi.family == "openmpi" else "openmpi"
    with pytest.raises(LaunchError, match=f"--mpi {other} was asked for, but mpi4py loads"):
        find_mpi(other, mpi.python)
