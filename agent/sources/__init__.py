"""Where observations come from: one package per system."""
