"""A page about a run or a scaling test: one HTML file that needs no network, or a live view of a running training."""
