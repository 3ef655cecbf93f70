"""The batch script of a run: a pure function from options to text.

The script starts one rank more than the allocation has tasks (rank 0 only coordinates and
shares a core), forwards the early warning, and judges the run by its result record, never
by the launcher's exit code: Open MPI's mpirun says 0 after it lost a node. Submitting the
text is `submit`'s business.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from hpcslaq.errors import HpcslaqError
from hpcslaq.record.times import parse_duration

#: Replaced by the index of an array's task in the job file and in the run directory.
INDEX = "%a"

#: Slurm's output file: job name and id.
DEFAULT_OUTPUT = "%x-%j.out"

#: Longest file name and option that are taken; a batch script is for people to read.
_MAX_TEXT = 1000

_ARRAY = re.compile(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?")
_MEMORY = re.compile(r"\d+[KMGT]?")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,:@&|*()\[\]+-]*")
_EXTRA = re.compile(r"--[a-z][a-z-]*(=[^\s\"'`$\\;]+)?")


class BatchOptionError(HpcslaqError):
    """An option of a batch script is impossible: names it, its value and what would be valid."""

    exit_code = 2

    def __init__(self, option: str, value: object, problem: str) -> None:
        self.option, self.value = option, value
        super().__init__(f"--{option}: {problem}, got {value!r}")


class Template(Enum):
    """How the ranks are started."""

    OPENMPI_PMIX = "openmpi-pmix"  # Open MPI, started by srun
    MPICH_PMI2 = "mpich-pmi2"  # MPICH and its descendants (Intel, Cray), started by srun
    MPIRUN = "mpirun"  # Open MPI's own mpirun, where srun cannot
    MPIEXEC = "mpiexec"  # MPICH's own mpiexec (hydra), where srun cannot
    APPTAINER = "apptainer"  # a container with an MPI of the host's family, started by srun


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What a batch script is made of. Raises BatchOptionError, naming the option."""

    #: What to train; INDEX in it becomes the index of an array's task.
    job_file: str
    #: Where results go; of an array the directory that holds one run directory per index.
    run_directory: str
    nodes: int
    ntasks_per_node: int
    #: Wall time; Slurm counts in minutes, so it is rounded up.
    time_s: float
    template: Template = Template.OPENMPI_PMIX
    #: Path of mpirun or mpiexec, for the templates of that name; None: the one in PATH.
    launcher: str | None = None
    cpus_per_task: int = 1
    job_name: str = "hpcslaq"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    #: Memory per node, for example "64G".
    mem: str | None = None
    #: Slurm's output file.
    output: str = DEFAULT_OUTPUT
    #: How long before the limit the ranks are asked to checkpoint and end; 0: not asked.
    warn_s: float = 120.0
    #: How often the job may requeue itself after a time limit or the loss of a node.
    max_restarts: int = 0
    #: Indices of a job array, as in `sbatch --array`; one run for each.
    array: str | None = None
    #: Policy in place of the job file's; several, with an array, are taken by index.
    policies: tuple[str, ...] = ()
    #: The run stays open for `hpcslaq submit` until `hpcslaq close`.
    is_serving: bool = False
    #: File of what is particular to the site (modules, environment); sourced by the script.
    site: str | None = None
    #: Interpreter that runs hpcslaq.
    python: str = "python3"
    #: Container image of the template "apptainer".
    image: str | None = None
    #: Further options of sbatch, each "--name=value".
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for option, least in (("nodes", 1), ("ntasks_per_node", 1), ("cpus_per_task", 1)):
            _check_count(option, getattr(self, option), least)
        _check_count("max_restarts", self.max_restarts, 0)
        if not (math.isfinite(self.time_s) and self.time_s > 0):
            raise BatchOptionError("time", self.time_s, "must be more than 0 s")
        if not 0 <= self.warn_s < self.time_s:
            raise BatchOptionError(
                "warn", self.warn_s, f"must be 0 s to less than --time ({self.time_s:g} s)"
            )
        for option in ("job_name", "partition", "account", "qos", "constraint"):
            _check_form(option, getattr(self, option), _WORD, "a word without blanks")
        _check_form("mem", self.mem, _MEMORY, "a size such as 64G")
        _check_form("array", self.array, _ARRAY, "indices such as 0-9, 1,3,5 or 0-99%10")
        for text in self.extra:
            _check_form("sbatch", text, _EXTRA, "an option such as --reservation=NAME")
        for option in (
            "job_file",
            "run_directory",
            "output",
            "site",
            "python",
            "image",
            "launcher",
        ):
            _check_text(option, getattr(self, option))
        self._check_together()

    def _check_together(self) -> None:
        if len(self.policies) > 1 and self.array is None:
            raise BatchOptionError("policy", ",".join(self.policies), "several need an --array")
        if self.array is None and INDEX in self.job_file + self.run_directory:
            raise BatchOptionError("array", None, f"{INDEX} in a name needs one")
        if self.launcher is not None and _LAUNCHERS[self.template].startswith("srun"):
            raise BatchOptionError("launcher", self.launcher, "this template starts by srun")
        if (self.image is None) != (self.template is not Template.APPTAINER):
            raise BatchOptionError(
                "image", self.image, "is for --template apptainer, which needs one"
            )


def batch_script(options: BatchOptions) -> str:
    """The text of the batch script, as `sbatch` takes it."""
    blocks = [_directives(options), _variables(options), _set_up(options), _launch(options), _JUDGE]
    return "#!/bin/bash\n" + "\n".join(blocks)


def choose_template(family: str, plugins: Collection[str]) -> Template:
    """How to start an MPI of this family ("openmpi", "mpich") where srun has these plugins."""
    if family == "openmpi":
        return Template.OPENMPI_PMIX if "pmix" in plugins else Template.MPIRUN
    return Template.MPICH_PMI2 if "pmi2" in plugins else Template.MPIEXEC


def parse_time_limit(text: str) -> float:
    """Seconds of a time limit: all forms of `sbatch --time`, and "90m" or "1h30m".

    A number alone is minutes, as for sbatch. Raises BatchOptionError.
    """
    days, dash, clock = text.strip().rpartition("-")
    parts = clock.split(":")
    is_number = all(part.isascii() and part.isdigit() for part in parts)
    if len(text) > 30 or (dash and not days.isdigit()) or len(parts) > 3:
        raise BatchOptionError("time", text, "must be a time such as 90m, 30 or 1-12:00:00")
    if not is_number:
        try:
            return parse_duration(text)
        except ValueError as error:
            raise BatchOptionError("time", text, str(error)) from None
    # With days the first part is hours; a single part is minutes.
    names = "hms" if dash else {1: "m", 2: "ms", 3: "hms"}[len(parts)]
    units = {"h": 3600.0, "m": 60.0, "s": 1.0}
    clock_s = sum(int(part) * units[name] for part, name in zip(parts, names, strict=False))
    return clock_s + (int(days) * 86_400.0 if dash else 0.0)


def slurm_time(seconds: float) -> str:
    """A wall time as Slurm writes it, rounded up to minutes: "01:30:00", "2-00:00:00"."""
    minutes = math.ceil(seconds / 60)
    days, minutes = divmod(minutes, 24 * 60)
    clock = f"{minutes // 60:02}:{minutes % 60:02}:00"
    return f"{days}-{clock}" if days else clock


def _directives(options: BatchOptions) -> str:
    values: list[tuple[str, object]] = [
        ("job-name", options.job_name),
        ("nodes", options.nodes),
        ("ntasks-per-node", options.ntasks_per_node),
        ("cpus-per-task", options.cpus_per_task),
        ("time", slurm_time(options.time_s)),
        ("partition", options.partition),
        ("account", options.account),
        ("qos", options.qos),
        ("constraint", options.constraint),
        ("mem", options.mem),
        ("array", options.array),
        ("output", options.output),
        ("open-mode", "append"),
        ("signal", f"B:USR1@{math.ceil(options.warn_s)}" if options.warn_s else None),
    ]
    lines = [f"#SBATCH --{name}={value}" for name, value in values if value is not None]
    # Always safe: a run that is started again goes on from its checkpoints.
    lines.append("#SBATCH --requeue")
    lines += [f"#SBATCH {text}" for text in options.extra]
    return "\n".join(lines) + "\n"


def _variables(options: BatchOptions) -> str:
    """The block that a person may edit."""
    run_directory = options.run_directory
    if options.array is not None and INDEX not in run_directory:
        run_directory += f"/{INDEX}"
    rows = [
        ("JOB_FILE", _quoted(options.job_file), "what to train"),
        ("RUN_DIR", _quoted(run_directory), "results; started again in it, the run goes on"),
        ("MAX_RESTARTS", str(options.max_restarts), "requeues by itself, at the most"),
        ("PYTHON", _quoted(options.python), "where hpcslaq is installed"),
        ("LAUNCHER", f"({_launcher(options)})", "starts the ranks"),
    ]
    if options.image is not None:
        rows.append(("IMAGE", _quoted(options.image), "container with MPI and hpcslaq"))
    if len(options.policies) > 1:
        names = " ".join(map(shlex.quote, options.policies))
        rows.append(("POLICIES", f"({names})", "one for each index, in turn"))
    lines = [f"{f'{name}={value}':48} # {what}" for name, value, what in rows]
    if options.site is not None:
        # Without a slash the shell would look along PATH.
        site = options.site if "/" in options.site else f"./{options.site}"
        lines += ["# shellcheck source=/dev/null", f". {_quoted(site)}"]
    return "\n".join(lines) + "\n"


#: A minute after the first rank has ended srun ends the others: with PMI2 they would wait for
#: a dead one for ever. --kill-on-bad-exit would end them at once, and with them the one that
#: says why all of them refuse to start.
_SRUN = "srun --mpi={} --overcommit --wait=60"
_LAUNCHERS = {
    Template.OPENMPI_PMIX: _SRUN.format("pmix"),
    Template.MPICH_PMI2: _SRUN.format("pmi2"),
    Template.MPIRUN: "mpirun --map-by slot:OVERSUBSCRIBE",
    Template.MPIEXEC: "mpiexec",
    Template.APPTAINER: _SRUN.format("pmix"),
}


def _launcher(options: BatchOptions) -> str:
    line = _LAUNCHERS[options.template]
    if options.launcher is None:
        return line
    _, blank, arguments = line.partition(" ")
    return shlex.quote(options.launcher) + blank + arguments


def _set_up(options: BatchOptions) -> str:
    return """\
ulimit -c 0
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"
launcher='' warned='' ended=''
# Passes the early warning on: checkpoint and end. It would kill ranks that are still starting;
# when all are up, the run has a new owner.
owner() { cat "$RUN_DIR/owner" 2>/dev/null; }
before=$(owner)
warn() {
    warned=1
    [ -n "$launcher" ] || return 0
    while kill -0 "$launcher" 2>/dev/null && [ "$(owner)" = "$before" ]; do sleep 1; done
    kill -USR1 "$launcher" 2>/dev/null && warned=''
}
trap warn USR1
# Slurm ends the job and tells the ranks itself.
trap 'ended=1' TERM
echo "hpcslaq: job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)), $(date)"
rm -f "$RUN_DIR/result.json"
"""


def _launch(options: BatchOptions) -> str:
    lines = ['"${LAUNCHER[@]}" -n $((SLURM_NTASKS + 1))']
    if options.image is not None:
        lines.append('apptainer exec "$IMAGE"')
    lines.append('"$PYTHON" -m mpi4py -m hpcslaq run "$JOB_FILE" --out "$RUN_DIR"')
    if len(options.policies) > 1:
        lines.append('--policy "${POLICIES[SLURM_ARRAY_TASK_ID % ${#POLICIES[@]}]}"')
    elif options.policies:
        lines.append(f"--policy {shlex.quote(options.policies[0])}")
    if options.is_serving:
        lines.append("--serve")
    lines.append(f"--stop-before {math.ceil(options.warn_s)}s")
    return "# Rank 0 coordinates and shares a core: one rank more than there are tasks.\n" + (
        " \\\n    ".join(lines) + " &\n"
    )


#: Waits for the launcher, judges the run and requeues. `wait` also returns when a trapped
#: signal comes; the last one gives the launcher's own code. After SIGTERM (cancelled,
#: preempted, out of time) it is Slurm's decision whether the job comes back.
_JUDGE = """\
launcher=$!
[ -z "$warned" ] || warn
while kill -0 "$launcher" 2>/dev/null; do wait "$launcher"; done
wait "$launcher"
code=$?

# A run that came to its end says so in its result; the launcher's word counts for little.
result=$(sed -n 's/^{"exit_code":\\([0-9]*\\),.*/\\1/p' "$RUN_DIR/result.json" 2>/dev/null)
if [ -n "$result" ]; then
    code=$result
else
    echo "hpcslaq: no result; the launcher ended with $code"
    case $code in
        0) code=1 ;;                # Open MPI, after it lost a node
        2 | 3 | 4) exit "$code" ;;  # another start would end the same way
    esac
fi
if [ -z "$ended" ] && { [ -z "$result" ] || [ "$code" = 75 ]; }; then
    if [ "${SLURM_RESTART_COUNT:-0}" -lt "$MAX_RESTARTS" ] &&
        scontrol requeue "$SLURM_JOB_ID"; then
        exit 75
    fi
    echo "hpcslaq: not finished; to go on, submit this script again"
fi
exit "$code"
"""


def _quoted(text: str) -> str:
    """A shell word; INDEX becomes the index of the array's task."""
    parts = [shlex.quote(part) if part else "" for part in text.split(INDEX)]
    return '"$SLURM_ARRAY_TASK_ID"'.join(parts)


def _check_count(option: str, value: int, least: int) -> None:
    if value < least:
        raise BatchOptionError(option.replace("_", "-"), value, f"must be {least} or more")


def _check_form(option: str, value: str | None, form: re.Pattern[str], what: str) -> None:
    if value is not None and not (len(value) <= _MAX_TEXT and form.fullmatch(value)):
        raise BatchOptionError(option.replace("_", "-"), value, f"must be {what}")


def _check_text(option: str, value: str | None) -> None:
    """Names are quoted for the shell, but a directive line has no quoting."""
    if value is None:
        return
    has_control = any(not character.isprintable() for character in value)
    if not value or has_control or len(value) > _MAX_TEXT:
        raise BatchOptionError(option.replace("_", "-"), value, "must be one line, not empty")
    if option in ("output", "run_directory") and re.search(r"[\s\"'\\#]", value):
        raise BatchOptionError(
            option.replace("_", "-"), value, "must be without blanks, quotes and #"
        )
