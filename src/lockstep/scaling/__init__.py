"""The scaling test: one training on several numbers of workers, measured, and what more workers would give."""
