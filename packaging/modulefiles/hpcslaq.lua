-- Lmod module file; put it into a directory of MODULEPATH as hpcslaq/VERSION.lua.
help([[hpcslaq trains many models inside one MPI allocation, regrouped at epoch boundaries.
First steps: hpcslaq doctor; hpcslaq slurm submit jobs.toml --ntasks-per-node 8 --time 1h]])
whatis("Name: hpcslaq")
whatis("Description: scheduling of many training jobs inside one MPI allocation")

-- Yours: where the virtual environment is, and the MPI that it was made for.
local root = "/apps/hpcslaq/" .. myModuleVersion()
depends_on("openmpi")

prepend_path("PATH", pathJoin(root, "bin"))
-- Converted data sets: a large file system that the nodes share.
local scratch = os.getenv("SCRATCH")
if scratch then
   pushenv("XDG_CACHE_HOME", pathJoin(scratch, "cache"))
end
