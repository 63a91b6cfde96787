"""What several rules ask of the facts."""
