"""What a run shows of itself: log, profile, reports."""
