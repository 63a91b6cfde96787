"""`python -m agent` is the command `backflow`."""

from agent.cli import main

main(prog_name="backflow")
