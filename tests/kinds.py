"""The names of the activations and magnitudes that the package itself brings."""

import hypersphere.functional  # noqa: F401 - fills the register
from hypersphere import registry
from hypersphere.functional.magnitude import names_with_radius

ANGULAR_KINDS = [e.name for e in registry.entries("angular") if not e.own]
MAGNITUDE_KINDS = [e.name for e in registry.entries("magnitude") if not e.own]
RADIUS_KINDS = [name for name in names_with_radius() if name in MAGNITUDE_KINDS]
