#%Module1.0
# Module file for Environment Modules; put it into a directory of MODULEPATH as hpcslaq/VERSION.
proc ModulesHelp { } {
    puts stderr "hpcslaq trains many models inside one MPI allocation."
    puts stderr "First steps: hpcslaq doctor; hpcslaq slurm submit jobs.toml --ntasks-per-node 8 --time 1h"
}
module-whatis "scheduling of many training jobs inside one MPI allocation"

# Yours: where the virtual environment is, and the MPI that it was made for.
set root /apps/hpcslaq/[file tail $ModulesCurrentModulefile]
module load openmpi

prepend-path PATH $root/bin
# Converted data sets: a large file system that the nodes share.
if { [info exists env(SCRATCH)] } {
    setenv XDG_CACHE_HOME $env(SCRATCH)/cache
}
