"""Nobody is let in: no sockets, no pickles, no YAML, no environment on disk."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "hpcslaq").rglob("*.py"))

#: Modules that open sockets or serve, that build objects from files, or that run code.
_BANNED = {
    *("socketserver", "http", "urllib.request", "ftplib", "smtplib", "xmlrpc", "asyncio", "ssl"),
    *("telnetlib", "paramiko", "requests", "zmq", "tornado", "aiohttp", "multiprocessing.managers"),
    *("pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml"),
}
#: Calls that run what is in a text or file, wherever they come from.
_BANNED_CALLS = {"eval", "exec", "compile", "execfile", "system", "popen"}


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in SOURCES:
        yield path, ast.parse(path.read_text())


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        return [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return []


def test_nothing_that_serves_unpickles_or_reads_yaml_is_imported() -> None:
    found = [
        (path.name, name)
        for path, tree in trees()
        for node in ast.walk(tree)
        for name in imported(node)
        if name in _BANNED or any(name.startswith(f"{banned}.") for banned in _BANNED)
    ]
    assert found == []


def test_the_socket_module_is_only_asked_for_the_name_of_the_host() -> None:
    used = set()
    for path, tree in trees():
        for node in ast.walk(tree):
            assert "socket" not in imported(node) or isinstance(node, ast.Import), path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id == "socket":
                    used.add(node.attr)
    assert used == {"gethostname"}


def test_no_text_is_run_as_code_and_nothing_is_loaded_as_a_pickle() -> None:
    for path, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else None
            owner = None
            if isinstance(node.func, ast.Attribute):
                name = node.func.attr
                owner = ast.unparse(node.func.value)
            if owner in (None, "os", "builtins"):
                assert name not in _BANNED_CALLS, f"{path}:{node.lineno}"
            if name == "load" and owner in ("np", "numpy"):
                keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert keywords.get("allow_pickle") == "False", f"{path}:{node.lineno}"
            assert (owner, name) != ("torch", "load"), f"{path}:{node.lineno}"
            shell = [k for k in node.keywords if k.arg == "shell"]
            assert not shell, f"{path}:{node.lineno}: a shell"


#: Commands in one process whose every socket, file and program is noted by an audit hook.
_WATCHED = """
import json, os, sys
seen, files = [], []
def note(event, args):
    if event.startswith("socket.") and event != "socket.gethostname":
        seen.append(event)
    if event in ("subprocess.Popen", "os.exec", "os.system", "pickle.find_class", "marshal.loads"):
        seen.append(event)
    if event == "open" and isinstance(args[0], str) and isinstance(args[1], str):
        if set(args[1]) & set("wax+"):
            files.append(os.path.abspath(args[0]))
import marshal  # the interpreter's own caches
from hpcslaq.cli.main import cli
import hpcslaq.cli.validate, hpcslaq.cli.simulate, hpcslaq.cli.predict, hpcslaq.cli.status
import hpcslaq.cli.report, hpcslaq.cli.requests, hpcslaq.cli.trace, hpcslaq.data.cache
sys.addaudithook(note)
from click.testing import CliRunner
codes = {}
for line in json.loads(sys.argv[1]):
    result = CliRunner().invoke(cli, line)
    codes[line[0]] = [result.exit_code, result.output[-300:] if result.exit_code else ""]
seen = [event for event in seen if event != "marshal.loads"]
print(json.dumps([codes, seen, files]))
"""


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    rows = "\n".join(f"{n % 7},{n % 3},{n % 2}" for n in range(40))
    (tmp_path / "own.csv").write_text("x,y,label\n" + rows + "\n")
    (tmp_path / "jobs.toml").write_text(
        '[data.own]\npath = "own.csv"\n[[job]]\nname = "a"\nmodel = "logistic"\n'
        'data = "own"\nchunks = 4\nepochs = 3\n'
    )
    (tmp_path / "load.toml").write_text("[workload]\nworkers = 4\n[jobs]\nnumber = 5\n")
    (tmp_path / "losses.txt").write_text("\n".join(str(1 / n) for n in range(1, 20)))
    return tmp_path


def test_commands_open_no_socket_start_no_program_and_write_where_they_should(
    workplace: Path,
) -> None:
    lines = [
        ["validate", "jobs.toml", "--data"],
        ["simulate", "load.toml", "--policy", "fair"],
        ["predict", "losses.txt"],
        ["models"],
    ]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    cache = workplace / "cache"
    done = subprocess.run(
        [sys.executable, "-B", "-c", _WATCHED, json.dumps(lines)],
        cwd=workplace,
        env={**os.environ, "PYTHONPATH": path, "HPCSLAQ_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    codes, seen, files = json.loads(done.stdout)
    assert {name: code for name, (code, _) in codes.items()} == {
        "validate": 0,
        "simulate": 0,
        "predict": 0,
        "models": 0,
    }, codes
    assert seen == []
    outside = [file for file in files if not file.startswith(f"{cache}{os.sep}")]
    assert [file for file in outside if file != os.devnull] == []


def test_the_environment_is_not_written_into_a_run(workplace: Path) -> None:
    secret = "s3cr3t-of-the-user"
    script = (
        "import sys; from pathlib import Path\n"
        "from hpcslaq.cli.prepare import prepare_run, read_checked\n"
        "file = Path('jobs.toml')\n"
        "prepare_run(file, read_checked(file), Path('run'), lambda *a: None)\n"
    )
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "HPCSLAQ_CACHE": str(workplace / "cache"),
        "MY_API_TOKEN": secret,
    }
    subprocess.run(
        [sys.executable, "-c", script], cwd=workplace, env=environment, check=True, timeout=120
    )
    files = [file for file in (workplace / "run").rglob("*") if file.is_file()]
    files += [file for file in (workplace / "cache").rglob("*") if file.is_file()]
    assert any(file.name == "run.toml" for file in files)
    assert [file for file in files if secret.encode() in file.read_bytes()] == []
