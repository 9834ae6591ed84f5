"""What veRL imports: by the entry point `verl.plugins`, or named in VERL_USE_EXTERNAL_MODULES.

Importing it registers a trainer, a policy loss and an agent loop, each by the name `entrostat`. A
failure here is logged by veRL at DEBUG only; `check` says it aloud.
"""

from importlib import import_module

# by name, since the trainer's module may be what imported veRL and thereby this
import_module("entrostat.trainers.verl.trainer")
import_module("entrostat.trainers.verl.agent")
