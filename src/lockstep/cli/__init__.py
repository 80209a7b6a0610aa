"""The command `dp`: one file per verb. Heavy libraries are imported by the verb that needs them, not before."""

from lockstep.cli import doc_train_input, freeze, model_devi, neighbor_stat, plot, report, scaling, show, test, train

VERBS = (train, freeze, test, model_devi, plot, report, scaling, show, neighbor_stat, doc_train_input)
"""The modules of the verbs, in the order of the help text."""
