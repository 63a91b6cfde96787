"""What offset_history is made of: the journal's files, moves found in arrays, what they mean, words and a plot."""
