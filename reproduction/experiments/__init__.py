"""One file a figure or table: settings as data, and a drawing that sees records only."""
