"""The command `dp`: one file per verb. Heavy libraries are imported by the verb that needs them, not before."""

from lockstep.cli import doc_train_input, train

VERBS = (train, doc_train_input)
"""The modules of the verbs, in the order of the help text."""
