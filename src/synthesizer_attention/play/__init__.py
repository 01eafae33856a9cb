"""One offline page in which trained models run, and what they attend to can be seen."""
