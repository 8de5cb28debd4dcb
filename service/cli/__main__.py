"""`python -m service.cli` is `callboard`."""

import sys

from service.cli import main

sys.exit(main())
