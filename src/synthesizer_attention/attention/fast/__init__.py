"""The same attention by the cheapest exact path; dispatch.py chooses."""
