"""What can be asked of a finished model, or of data before there is one: errors, deviations, neighbours."""
