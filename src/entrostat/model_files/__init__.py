"""Where a model comes from: shipped, from a package of an index, cached, or the hub."""

from .catalogue import MODELS as MODELS
from .catalogue import KnownModel as KnownModel
from .catalogue import Wheel as Wheel
from .names import NOWHERE as NOWHERE
from .names import TINY as TINY
from .names import cache_directory as cache_directory
from .names import check_model as check_model
from .names import find as find
from .names import is_ours as is_ours
from .names import is_tiny as is_tiny
from .names import is_whole as is_whole
from .names import model_directory as model_directory
from .names import provenance as provenance
from .names import tiny_directory as tiny_directory
from .names import tiny_size as tiny_size
from .names import write_provenance as write_provenance
