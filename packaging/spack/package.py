# Spack recipe; put it into a repository as packages/py_hpcslaq/package.py.
# ruff: noqa: F403, F405
from spack.package import *


class PyHpcslaq(PythonPackage):
    """Scheduling of many machine-learning training jobs inside one MPI allocation."""

    # Yours: where the sources are.
    git = "file:///apps/src/hpcslaq"

    license("Apache-2.0")

    version("main", branch="main")

    variant("data", default=False, description="Parquet files and built-in data sets")
    variant("report", default=True, description="Figures in reports")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@68:", type="build")
    depends_on("py-mpi4py@4.1:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-scipy@1.11:", type=("build", "run"))
    depends_on("py-h5py@3.10:", type=("build", "run"))
    depends_on("py-click@8.1:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    with when("+data"):
        depends_on("py-pyarrow@14:", type=("build", "run"))
        depends_on("py-scikit-learn@1.4:", type=("build", "run"))
        depends_on("py-pillow@10:", type=("build", "run"))
    with when("+report"):
        depends_on("py-matplotlib@3.8:", type=("build", "run"))
