# shellcheck shell=bash disable=SC2034  # the batch scripts read the variables
# What is particular to your site. The batch scripts source this file after they have set
# their own variables, so what is set here wins. Take the comment signs off what you need.

# Modules: the MPI must be the one that mpi4py was built for, or one with the same interface.
#module purge
#module load gcc openmpi python

# The environment in which hpcslaq is installed.
#source "$HOME/venvs/hpcslaq/bin/activate"
#PYTHON=python3

# How this site starts MPI programs, where it differs from the script's own line. The script
# appends "-n RANKS" and the program; RANKS is one more than the tasks of the allocation.
#LAUNCHER=(srun --mpi=pmix_v4 --overcommit --wait=60)

# Converted data sets are kept here and used again by all runs: a large shared file system.
#export XDG_CACHE_HOME=$SCRATCH/cache
