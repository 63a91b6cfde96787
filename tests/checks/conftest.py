"""A script in place of Spark, for tests of the process around a check."""

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

Scripted = Callable[[str], None]


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    package = tmp_path / "spark_checks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "server.py").write_text(_SERVER, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def write(script: str) -> None:
        (package / "__main__.py").write_text(_HEAD + dedent(script), encoding="utf-8")

    return write


def written(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


_SERVER = """
import json, subprocess, sys
from pathlib import Path
with Path("servers").open("a") as servers:
    servers.write(" ".join(sys.argv[1:]) + "\\n")
for line in sys.stdin:
    command = [sys.executable, "-m", "spark_checks", *json.loads(line)]
    status = subprocess.run(command, stdin=subprocess.DEVNULL).returncode
    print(f"\\nended: {status}", file=sys.stderr, flush=True)
    print(f"ended: {status}", flush=True)
"""

_HEAD = """
import json, os, subprocess, sys, time
from pathlib import Path
def finding(partition=0, severity="critical", detail="replicas differ", **more):
    return json.dumps({"rule": "replica_divergence", "kind": "replica_divergence", "severity": severity,
        "at": "2026-11-20T23:25:13.900Z", "subject": {"cluster": "main", "brokers": [1, 2], "topic": "t",
        "partition": partition}, "detail": detail, **more})
def option(name):
    return sys.argv[sys.argv.index(name) + 1]
def say(text):
    print(text, flush=True)
def log(text):
    print(text, file=sys.stderr, flush=True)
"""
