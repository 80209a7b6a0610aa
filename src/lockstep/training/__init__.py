"""From a model to a trained model: the loop, schedule, loss, optimizer, checkpoints, learning curve."""
