"""The module that veRL imports, by entry point `verl.plugins` or VERL_USE_EXTERNAL_MODULES.

Importing it registers a trainer, a policy loss and an agent loop, each by the name `entrostat`.
veRL logs a failure here at DEBUG only; `check` raises it.
"""

from importlib import import_module

# by name, since the trainer's module may have imported veRL, which imports this module
import_module("entrostat.trainers.verl.trainer")
import_module("entrostat.trainers.verl.agent")
