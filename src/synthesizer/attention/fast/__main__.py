"""python -m synthesizer.fast: compile the optional kernel for this machine."""

import sys

from synthesizer.attention.fast.kernel import build
from synthesizer.errors import UserError
from synthesizer.untrusted import printable

try:
    sys.stdout.write(f"{build()}\n")
except UserError as error:
    sys.stderr.write(f"synthesizer: error: {printable(str(error))}\n")
    sys.exit(2)
