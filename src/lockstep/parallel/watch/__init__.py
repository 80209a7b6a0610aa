"""All that notices and ends a lost rank."""
