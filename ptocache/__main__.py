"""`python -m ptocache` is the `ptocache` command."""

from ptocache.cli import main

raise SystemExit(main())
