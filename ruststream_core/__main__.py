"""`python -m ruststream_core` is the command `ruststream`."""

import sys

from ruststream_core.cli import main

if __name__ == "__main__":
    sys.exit(main())
