"""How weights move: learning rate schedules and optimizers."""
