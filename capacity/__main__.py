"""`python -m capacity VERB`: plan, search, estimate, size, simulate, export, fields. JSON in, JSON or text out.

Exit 0 for an answer (also "does not fit"), 2 for bad input with one line on standard error.
"""

from __future__ import annotations

import sys

from capacity.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
