"""What to run (a recipe) and what it left behind (a run directory); no torch."""
