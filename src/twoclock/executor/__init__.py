"""Where work runs: this process, processes, or a Ray cluster."""
