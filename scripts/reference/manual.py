"""The man page and the shell completions of the command `backflow`, generated from its commands."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping

import click
from click.shell_completion import get_completion_class

from agent.cli.main import main as command

_HEAD = r"""
.TH BACKFLOW 1 "" "Backflow" "User Commands"
.SH NAME
backflow \- detect data streams that move backwards, and find out why
.SH SYNOPSIS
.B backflow
.I COMMAND
[\fIOPTIONS\fR]
.SH DESCRIPTION
"""

_TAIL = r"""
.SH EXIT STATUS
.TP
.B 0
Nothing to report.
.TP
.B 1
Findings.
.TP
.B 2
Wrong usage or configuration.
.TP
.B 3
Failure.
.SH FILES
.TP
.I ./rules.toml
The configuration, unless
.B \-\-config
names another. The service of the Debian package reads
.IR /etc/backflow/rules.toml .
.TP
.I /var/lib/backflow
State of the service: journal, incidents, pending notifications.
"""


def man_page() -> str:
    """Return the man page backflow(1)."""
    group = click.Context(command, info_name="backflow", help_option_names=["-h", "--help"])
    lines = [*_HEAD.strip().splitlines(), *_paragraphs(command), ".SH COMMANDS"]
    for context in subcommands(group, command):
        usage = " ".join(context.command.collect_usage_pieces(context))
        lines += [f".SS {_roff(f'{context.command_path} {usage}')}", *_paragraphs(context.command)]
        for option, text in _options(context):
            lines += [".TP", rf"\fB{_roff(option)}\fR", _roff(text)]
    return "\n".join([*lines, *_TAIL.strip().splitlines()]) + "\n"


def subcommands(parent: click.Context, group: click.Group) -> Iterator[click.Context]:
    """Yield a context for each command of the group, and for those of groups in it."""
    for name, subcommand in group.commands.items():
        context = click.Context(subcommand, info_name=name, parent=parent)
        yield context
        if isinstance(subcommand, click.Group):
            yield from subcommands(context, subcommand)


def _options(context: click.Context) -> Iterator[tuple[str, str]]:
    for parameter in context.command.get_params(context):
        if (record := parameter.get_help_record(context)) is not None:
            yield record


def _paragraphs(described: click.Command) -> Iterator[str]:
    for paragraph in inspect.cleandoc(described.help or "").split("\n\n"):
        yield ".PP"
        yield _roff(" ".join(paragraph.split()))


def _roff(text: str) -> str:
    """Return text as roff shows it literally: backslashes and hyphens, and no line that begins a request."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^(?=[.'])", r"\\&", escaped)


def _completion(shell: str) -> str:
    complete = get_completion_class(shell)
    if complete is None:
        msg = f"click has no completion for {shell}"
        raise ValueError(msg)
    source = complete(command, {}, "backflow", "_BACKFLOW_COMPLETE")
    return source.source_template % source.source_vars()


FILES: Mapping[str, Callable[[], str]] = {
    "backflow.1": man_page,
    "completions/backflow": lambda: _completion("bash"),
    "completions/_backflow": lambda: _completion("zsh"),
    "completions/backflow.fish": lambda: _completion("fish"),
}
"""Each generated file of the directory `package`; completions have the names that the shells look for."""
