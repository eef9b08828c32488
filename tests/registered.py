"""What the register and the imported plugins were before a test."""

import sys

from hypersphere import registry


def restore(before, modules):
    for name, module in list(sys.modules.items()):
        if name not in modules and "__sha256__" in vars(module):
            del sys.modules[name]
    for kind, table in registry._ENTRIES.items():
        table.clear()
        table.update(before[kind])
