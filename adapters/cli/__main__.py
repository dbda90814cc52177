"""`python -m onceward.adapters.cli`: the command line without an installed script."""

import sys

from onceward.adapters.cli import main

sys.exit(main())
