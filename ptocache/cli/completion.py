"""Print what makes a shell complete ptocache's commands, options and keys.

bash   eval "$(ptocache completion bash)"              in ~/.bashrc
zsh    eval "$(ptocache completion zsh)"               in ~/.zshrc, below compinit
fish   ptocache completion fish | source               in ~/.config/fish/config.fish
"""

from __future__ import annotations

import argparse
import sys

from ptocache.cli import COMMANDS, make_parser

_SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("shell", metavar="SHELL", choices=_SHELLS, help="bash, zsh or fish")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(["ptocache"], shell=options.shell) + "\n")
    return 0


def complete() -> None:
    """Answer a shell, and end the process; it returns where the shell asked for something else."""
    import argcomplete

    parser = argparse.ArgumentParser(prog="ptocache")
    parser.add_argument("--version", action="store_true")
    commands = parser.add_subparsers()
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text, parents=[make_parser(name)], add_help=False)
    argcomplete.autocomplete(parser)
