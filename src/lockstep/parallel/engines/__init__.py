"""What carries the messages between ranks: one file for each way."""
