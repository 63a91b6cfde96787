"""The status page, metrics and health of the running agent over HTTP."""
