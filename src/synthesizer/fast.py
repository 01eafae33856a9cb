"""python -m synthesizer.fast: as before the move."""

import runpy

if __name__ == "__main__":
    runpy.run_module("synthesizer.attention.fast", run_name="__main__")
