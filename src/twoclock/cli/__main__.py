import sys

from twoclock.cli import main

sys.exit(main())
