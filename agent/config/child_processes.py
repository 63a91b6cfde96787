"""The child processes of Backflow: the environment that they get, and where Python looks for modules in them."""

import os
import sys
from collections.abc import Mapping
from fnmatch import fnmatchcase

_ALL = (
    *("PATH", "HOME", "LANG", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_*", "OPENSSL_*", "PYTHON*"),
    "COVERAGE_*",  # coverage of subprocesses
)
"""Patterns of the environment variables that every child process inherits."""

JAVA = ("JAVA_HOME", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
"""What a Java virtual machine reads as well."""

SPARK = (
    *JAVA,
    *("SPARK_*", "PYSPARK_*", "HADOOP_CONF_DIR", "HADOOP_HOME", "HADOOP_USER_NAME", "YARN_CONF_DIR", "KUBECONFIG"),
    "DEFAULT_ARTIFACT_REPOSITORY",  # where Spark and Ivy look for jars first
)
"""What a Spark check reads as well."""


ARCHIVE = ("AWS_*", "GOOGLE_APPLICATION_CREDENTIALS", "CLASSPATH", "ARROW_LIBHDFS_DIR")
"""What a check that an operator runs reads as well, to reach an archive of journals as the operator does."""


def child_environment(also: tuple[str, ...] = (), environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a child process: only what it needs, without the secrets that the agent's may have.

    also: further patterns of names.
    """
    patterns = (*_ALL, *also)
    return {
        name: value for name, value in environment.items() if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def python_module(module: str, *arguments: str) -> list[str]:
    """Return the command of a module as a process; -P: never one in the working directory."""
    return [sys.executable, "-P", "-m", module, *arguments]


def python_environment(also: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the environment of a Python process, which finds modules where this process does.

    Python processes that it starts, such as Spark's workers, do not look in the working directory either.
    """
    path = os.pathsep.join(filter(None, sys.path))
    return child_environment(also) | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
