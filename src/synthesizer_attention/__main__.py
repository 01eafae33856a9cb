"""`python -m synthesizer_attention` is the command line."""

from synthesizer_attention.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
