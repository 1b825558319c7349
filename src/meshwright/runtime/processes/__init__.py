"""Multi-process jobs: finding the process's index, joining, checking agreement, and reporting which process failed."""
