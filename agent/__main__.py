"""`python -m agent` is the command `backflow`."""

from agent.cli.main import main

main(prog_name="backflow")
