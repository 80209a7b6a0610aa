"""Where other programs meet this one: DeePMD-kit's model files, ASE."""
