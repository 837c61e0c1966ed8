"""``python -m warpplan.service.cli``."""

import sys

from warpplan.service.cli.app import main

sys.exit(main())
