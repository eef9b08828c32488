"""What a run can train. Each file is one task, and says its modules, losses, test and sections.

A task is a class that is registered by name, `@register("task", "gan")`, with

    sections                      the config sections that it uses beyond those that every task
                                  does (`prepare.OPTIONAL` lists them); others are refused
    build(config, fabric)         classmethod: reads the data, builds the networks
    objectives()                  what is trained: a list of `Objective(net, loss, every)`
    batches_per_epoch             what one epoch is (`train.epochs`)

and with what the loop asks for (`runtime.Task`): model, players (set by `prepare`), best,
batches(), measure(batch, outputs), test(), state_dict(), load_state_dict(state). It may also have

    hooked                        the network that hooks and regularizers act on, if not the model
    gives_labels                  True if its batches are (samples, labels), which some hooks need
    labeled                      the `Loaders` of a classifier: features of its test part and
                                  verification follow training
    metrics(config)               classmethod: the names of what test() gives, the main one first;
                                  `hypersphere compare` then refuses others before training
    conclude(run, record, say)    called once after training; returns entries of summary.json

Everything else is the same for all tasks and done once, in `prepare.py`.
"""

from __future__ import annotations

from hypersphere.training.tasks.classification import Classification
from hypersphere.training.tasks.few_shot import FewShot
from hypersphere.training.tasks.gan import Gan
from hypersphere.training.tasks.graph import NodeClassification
from hypersphere.training.tasks.reconstruction import Reconstruction

__all__ = ["Classification", "FewShot", "Gan", "NodeClassification", "Reconstruction"]
