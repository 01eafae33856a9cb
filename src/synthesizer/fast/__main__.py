"""python -m synthesizer.fast: compile the optional kernel for this machine; print its place."""

import sys

from synthesizer.errors import UserError
from synthesizer.fast.kernel import build

try:
    sys.stdout.write(f"{build()}\n")
except UserError as error:
    sys.stderr.write(f"synthesizer: error: {error}\n")
    sys.exit(2)
