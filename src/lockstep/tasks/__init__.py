"""What a run trains: each kind of task behind one interface."""
