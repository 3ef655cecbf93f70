"""The pure core: jobs, events, commands, policies' seam, placement and the coordinator.

Standard library only: no clock, no files, no MPI, no randomness. Drivers live in
`hpcslaq.mpi` (live) and `hpcslaq.sim` (virtual time).
"""
