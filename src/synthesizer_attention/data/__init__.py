"""From a user's files to rows, tokens and batches."""
