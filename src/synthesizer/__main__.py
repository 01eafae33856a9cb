"""`python -m synthesizer` is the command line."""

from synthesizer.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
